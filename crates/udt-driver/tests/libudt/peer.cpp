// A peer with libudt: sends and receives bytes on one connection, and checks those that it receives.
//
//   peer listen|connect 4|6 PORT SEND RECEIVE [MSS]
//
// A listener prints its port. SEND and RECEIVE are numbers of bytes; RECEIVE -1 is until the end of the
// connection. The last line of the output is "received N", if the bytes are right.

#include <arpa/inet.h>
#include <netinet/in.h>
#include <udt/udt.h>

#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <string>
#include <thread>
#include <vector>

static char byte_at(long long i) { return (char)((7 * i >> 3) & 255); }

static void fail(const char* what) {
    fprintf(stderr, "%s: %s\n", what, UDT::getlasterror().getErrorMessage());
    exit(1);
}

static void send_all(UDTSOCKET s, long long count) {
    std::vector<char> block(100000);
    for (long long sent = 0; sent < count;) {
        int n = (int)std::min((long long)block.size(), count - sent);
        for (int i = 0; i < n; i++) block[i] = byte_at(sent + i);
        for (int done = 0; done < n;) {
            int m = UDT::send(s, block.data() + done, n - done, 0);
            if (m == UDT::ERROR) fail("send");
            done += m;
        }
        sent += n;
    }
}

static long long receive_all(UDTSOCKET s, long long count) {
    std::vector<char> block(100000);
    long long received = 0;
    while (count < 0 || received < count) {
        int most = count < 0 ? (int)block.size() : (int)std::min((long long)block.size(), count - received);
        int n = UDT::recv(s, block.data(), most, 0);
        if (n == UDT::ERROR) {
            if (count < 0 && UDT::getlasterror().getErrorCode() == UDT::ERRORINFO::ECONNLOST) break;
            fail("recv");
        }
        for (int i = 0; i < n; i++) {
            if (block[i] != byte_at(received + i)) {
                fprintf(stderr, "byte %lld is wrong\n", received + i);
                exit(1);
            }
        }
        received += n;
    }
    return received;
}

int main(int argc, char** argv) {
    if (argc < 6) return 2;
    bool listens = std::string(argv[1]) == "listen";
    bool ipv6 = std::string(argv[2]) == "6";
    int port = atoi(argv[3]);
    long long to_send = atoll(argv[4]), to_receive = atoll(argv[5]);
    UDT::startup();
    UDTSOCKET s = UDT::socket(ipv6 ? AF_INET6 : AF_INET, SOCK_STREAM, 0);
    if (argc > 6) {
        int mss = atoi(argv[6]);
        if (UDT::setsockopt(s, 0, UDT_MSS, &mss, sizeof mss) == UDT::ERROR) fail("mss");
    }
    sockaddr_in v4 = {};
    v4.sin_family = AF_INET;
    v4.sin_port = htons(port);
    inet_pton(AF_INET, "127.0.0.1", &v4.sin_addr);
    sockaddr_in6 v6 = {};
    v6.sin6_family = AF_INET6;
    v6.sin6_port = htons(port);
    inet_pton(AF_INET6, "::1", &v6.sin6_addr);
    sockaddr* address = ipv6 ? (sockaddr*)&v6 : (sockaddr*)&v4;
    int length = ipv6 ? sizeof v6 : sizeof v4;
    if (listens) {
        if (UDT::bind(s, address, length) == UDT::ERROR) fail("bind");
        if (UDT::listen(s, 10) == UDT::ERROR) fail("listen");
        sockaddr_storage own = {};
        int own_length = length;
        UDT::getsockname(s, (sockaddr*)&own, &own_length);
        printf("%d\n", ntohs(ipv6 ? ((sockaddr_in6*)&own)->sin6_port : ((sockaddr_in*)&own)->sin_port));
        fflush(stdout);
        UDTSOCKET accepted = UDT::accept(s, NULL, NULL);
        if (accepted == UDT::INVALID_SOCK) fail("accept");
        s = accepted;
    } else if (UDT::connect(s, address, length) == UDT::ERROR) {
        fail("connect");
    }
    std::thread sender([=] { send_all(s, to_send); });
    long long received = receive_all(s, to_receive);
    sender.join();
    // It waits until all bytes are acknowledged.
    UDT::close(s);
    printf("received %lld\n", received);
    fflush(stdout);
    // libudt's threads may still use what its destructors free.
    _Exit(0);
}
