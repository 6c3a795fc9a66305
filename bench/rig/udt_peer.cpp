// One end of a UDT connection with libudt, for measurements: the arguments and the output are those of
// `src/bin/udt-peer.rs`. A third argument to `receive` sets the receiver's buffer, in packets.

#include <arpa/inet.h>
#include <netinet/in.h>
#include <sys/resource.h>
#include <udt/udt.h>

#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <string>
#include <vector>

using Clock = std::chrono::steady_clock;

static void fail(const char* what) {
    fprintf(stderr, "%s: %s\n", what, UDT::getlasterror().getErrorMessage());
    exit(1);
}

static double cpu() {
    rusage usage;
    getrusage(RUSAGE_SELF, &usage);
    return usage.ru_utime.tv_sec + usage.ru_stime.tv_sec + 1e-6 * (usage.ru_utime.tv_usec + usage.ru_stime.tv_usec);
}

static double since(Clock::time_point start) { return std::chrono::duration<double>(Clock::now() - start).count(); }

static sockaddr_in address(const char* ip, int port) {
    sockaddr_in result = {};
    result.sin_family = AF_INET;
    result.sin_port = htons(port);
    inet_pton(AF_INET, ip, &result.sin_addr);
    return result;
}

static void end(UDTSOCKET s) {
    UDT::close(s);
    fflush(stdout);
    // libudt's threads may still use what its destructors free.
    _Exit(0);
}

static void receive(int port, double seconds, int packets) {
    UDTSOCKET listener = UDT::socket(AF_INET, SOCK_STREAM, 0);
    if (packets) {
        int bytes = packets * 1456;
        UDT::setsockopt(listener, 0, UDT_FC, &packets, sizeof packets);
        UDT::setsockopt(listener, 0, UDT_RCVBUF, &bytes, sizeof bytes);
    }
    sockaddr_in any = address("0.0.0.0", port);
    if (UDT::bind(listener, (sockaddr*)&any, sizeof any) == UDT::ERROR) fail("bind");
    if (UDT::listen(listener, 10) == UDT::ERROR) fail("listen");
    printf("ready\n");
    fflush(stdout);
    UDTSOCKET s = UDT::accept(listener, NULL, NULL);
    if (s == UDT::INVALID_SOCK) fail("accept");
    int wait = 20;
    std::vector<char> buffer(1 << 20);
    int n = UDT::recv(s, buffer.data(), buffer.size(), 0);
    if (n == UDT::ERROR) fail("recv");
    long long bytes = n;
    auto start = Clock::now();
    UDT::setsockopt(s, 0, UDT_RCVTIMEO, &wait, sizeof wait);
    while (since(start) < seconds) {
        n = UDT::recv(s, buffer.data(), buffer.size(), 0);
        if (n > 0) bytes += n;
        else if (UDT::getlasterror().getErrorCode() != UDT::ERRORINFO::ETIMEOUT) break;
    }
    printf("{\"bytes\": %lld, \"cpu\": %.3f, \"seconds\": %.3f}\n", bytes, cpu(), since(start));
    end(s);
}

static void send(const char* ip, int port) {
    UDTSOCKET s = UDT::socket(AF_INET, SOCK_STREAM, 0);
    sockaddr_in peer = address(ip, port);
    if (UDT::connect(s, (sockaddr*)&peer, sizeof peer) == UDT::ERROR) fail("connect");
    linger none = {1, 0};
    UDT::setsockopt(s, 0, UDT_LINGER, &none, sizeof none);
    std::vector<char> buffer(1 << 20);
    long long bytes = 0;
    for (int n; (n = UDT::send(s, buffer.data(), buffer.size(), 0)) != UDT::ERROR;) bytes += n;
    UDT::TRACEINFO trace = {};
    UDT::perfmon(s, &trace);
    printf("{\"bytes\": %lld, \"cpu\": %.3f, \"retransmitted\": %d, \"sent\": %lld}\n", bytes, cpu(),
           trace.pktRetransTotal, (long long)trace.pktSentTotal);
    end(s);
}

int main(int argc, char** argv) {
    UDT::startup();
    std::string role = argc > 1 ? argv[1] : "";
    if (role == "receive" && argc >= 4) receive(atoi(argv[2]), atof(argv[3]), argc > 4 ? atoi(argv[4]) : 0);
    if (role == "send" && argc == 4) send(argv[2], atoi(argv[3]));
    fprintf(stderr, "usage: udt_peer receive PORT SECONDS [PACKETS] | send ADDRESS PORT\n");
    return 2;
}
