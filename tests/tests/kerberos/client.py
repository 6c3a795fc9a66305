"""An FTP client with Kerberos, written from RFC 2228 and RFC 2743 with nothing of ours in it.

usage: client.py PORT S|P GET REMOTE LOCAL | PUT LOCAL REMOTE | CUT LOCAL REMOTE | REORDER LOCAL REMOTE | BIG REMOTE | STRANGER REMOTE
"""
import base64
import re
import socket
import struct
import sys

import gssapi

port, level, what, *names = sys.argv[1:]
SIZE = 65536


class Control:
    def __init__(self):
        self.socket = socket.create_connection(("127.0.0.1", int(port)), timeout=20)
        self.lines = self.socket.makefile("rb")
        self.context = None
        self.reply()

    def line(self):
        line = self.lines.readline()
        if not line:
            raise SystemExit("the server closed the control connection")
        line = line.rstrip(b"\r\n")
        if self.context is None:
            return line
        assert re.match(rb"63[123][ -]", line), line
        plain = self.context.unwrap(base64.b64decode(line[4:]))
        assert plain.encrypted == line.startswith(b"632"), line
        return plain.message.rstrip(b"\r\n")

    def reply(self):
        line = self.line()
        text = [line]
        while line[3:4] == b"-" or not re.match(rb"\d\d\d ", line):
            line = self.line()
            text.append(line)
        return b"\n".join(text).decode()

    def send(self, command, word=b"ENC"):
        command = command.encode() + b"\r\n"
        if self.context is not None:
            token = self.context.wrap(command, word == b"ENC").message
            command = word + b" " + base64.b64encode(token) + b"\r\n"
        self.socket.sendall(command)

    def call(self, command, expected, word=b"ENC"):
        self.send(command, word)
        reply = self.reply()
        if not reply.startswith(expected):
            raise SystemExit(f"{command.split()[0]}: {reply}")
        return reply

    def authenticate(self):
        name = gssapi.Name("host@localhost", gssapi.NameType.hostbased_service)
        flags = [gssapi.RequirementFlag.mutual_authentication, gssapi.RequirementFlag.integrity,
                 gssapi.RequirementFlag.confidentiality]
        context = gssapi.SecurityContext(name=name, usage="initiate", flags=flags)
        token = context.step()
        self.call("AUTH GSSAPI", "334")
        while True:
            self.send("ADAT " + base64.b64encode(token).decode())
            reply = self.reply()
            found = re.match(r"[23]35[ -].*ADAT=(\S+)", reply)
            if not found:
                raise SystemExit(f"ADAT: {reply}")
            token = context.step(base64.b64decode(found[1]))
            if context.complete:
                assert reply.startswith("235"), reply
                break
        self.context = context


def receive(data, size):
    parts = b""
    while len(parts) < size:
        part = data.recv(size - len(parts))
        if not part:
            raise SystemExit("the data connection was cut off")
        parts += part
    return parts


control = Control()
control.authenticate()
control.call("USER ada", "331", b"MIC")
control.call("PASS x", "230")
control.call("TYPE I", "200", b"MIC")
control.call("DCAU N", "200")
control.call("DCAU A", "504")
assert control.call(f"PBSZ {SIZE}", "200").endswith(f"PBSZ={SIZE}")
control.call("PROT " + level, "200")
encrypts = level == "P"
numbers = re.search(r"\((.*)\)", control.call("PASV", "227"))[1].split(",")
data = socket.create_connection(("127.0.0.1", int(numbers[4]) * 256 + int(numbers[5])), timeout=20)

if what == "GET":
    remote, local = names
    control.send("RETR " + remote)
    content, wire = b"", b""
    while True:
        (size,) = struct.unpack(">I", receive(data, 4))
        assert 0 < size <= SIZE, size
        token = receive(data, size)
        wire += token
        plain = control.context.unwrap(token)
        assert plain.encrypted == encrypts
        if not plain.message:
            break
        content += plain.message
    assert data.recv(1) == b""
    assert (content[:64] in wire) == (not encrypts)
    reply = control.reply()
    assert reply.startswith("150"), reply
    reply = control.reply()
    assert reply.startswith("226"), reply
    open(local, "wb").write(content)
else:
    content = b"0123456789" * 50000 if what == "STRANGER" or what == "BIG" else open(names[0], "rb").read()
    control.send("STOR " + names[-1])
    reply = control.reply()
    if not reply.startswith("150"):
        raise SystemExit(f"STOR: {reply}")
    if what == "STRANGER":
        data.sendall(content)
        data.close()
    elif what == "BIG":
        data.sendall(struct.pack(">I", 1 << 24) + content)
    else:
        chunks = [content[at:at + SIZE - 128] for at in range(0, len(content), SIZE - 128)]
        tokens = [control.context.wrap(chunk, encrypts).message for chunk in chunks]
        if what == "REORDER":
            tokens[1], tokens[2] = tokens[2], tokens[1]
        if what == "TWICE":
            tokens.insert(1, tokens[1])
        if what != "CUT":
            tokens.append(control.context.wrap(b"", encrypts).message)
        try:
            for token in tokens:
                data.sendall(struct.pack(">I", len(token)) + token)
        except OSError:
            pass
        data.close()
    reply = control.reply()
    print(reply)
    if not reply.startswith("226"):
        raise SystemExit(1)
control.call("QUIT", "221")
