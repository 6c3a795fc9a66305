"""ftplib and aioftp as clients: MODULE HOST PORT, and one of

    put LOCAL REMOTE
    get REMOTE LOCAL
    list DIRECTORY
    rename FROM TO
"""

import asyncio
import ftplib
import sys


def with_ftplib(host, port, action, first, second=None):
    with ftplib.FTP(timeout=30) as ftp:
        ftp.connect(host, port)
        ftp.login()
        if action == "put":
            with open(first, "rb") as file:
                ftp.storbinary("STOR " + second, file)
        elif action == "get":
            with open(second, "wb") as file:
                ftp.retrbinary("RETR " + first, file.write)
        elif action == "rename":
            ftp.rename(first, second)
        else:
            special = ("cdir", "pdir")
            facts = {name for name, facts in ftp.mlsd(first) if facts["type"].lower() not in special}
            names = ftp.nlst(first)
            if facts != set(names):
                raise SystemExit(f"MLSD gave {facts}, NLST {names}")
            print("\n".join(names))


async def with_aioftp(host, port, action, first, second=None):
    import aioftp

    async with aioftp.Client.context(host, port) as client:
        if action == "put":
            await client.upload(first, second, write_into=True)
        elif action == "get":
            await client.download(first, second, write_into=True)
        elif action == "rename":
            await client.rename(first, second)
        else:
            async for path, _ in client.list(first):
                print(path.name)


module, host, port, *rest = sys.argv[1:]
if module == "ftplib":
    with_ftplib(host, int(port), *rest)
else:
    asyncio.run(with_aioftp(host, int(port), *rest))
