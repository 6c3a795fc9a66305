// N flows that never end, over one link, in ns-3: the second opinion on sim/steady.tcl.
// Usage: onehop FLOWS RTT_MS QUEUE SEED SECONDS SPREAD, the last over which the starts are spread. Prints one JSON line.
//
// The queue stands in a queue disc with a device queue of one packet, for a full device queue drops without a trace; the
// disc is set by hand, for the one that comes by default is FqCoDel. TcpLinuxReno with SACK: TcpNewReno without it sends
// whole windows again after a timeout.
#include "ns3/applications-module.h"
#include "ns3/core-module.h"
#include "ns3/internet-module.h"
#include "ns3/network-module.h"
#include "ns3/point-to-point-module.h"
#include "ns3/traffic-control-module.h"

#include <cstdio>
#include <cstdlib>
#include <string>

using namespace ns3;

static uint64_t arrived = 0, left = 0, dropped = 0, received = 0;
static double waited = 0;

struct Numbers
{
    uint64_t arrived, left, dropped, received;
    double waited;
};

static Numbers
Counted()
{
    return {arrived, left, dropped, received, waited};
}

int
main(int argc, char** argv)
{
    if (argc != 7)
    {
        std::fprintf(stderr, "usage: onehop FLOWS RTT_MS QUEUE SEED SECONDS SPREAD\n");
        return 2;
    }
    const int flows = std::atoi(argv[1]);
    const double rtt = std::atof(argv[2]);
    const std::string queue = std::string(argv[3]) + "p";
    RngSeedManager::SetSeed(std::atoi(argv[4]));
    const double seconds = std::atof(argv[5]);
    const uint32_t segment = 1460, window = 43;

    Config::SetDefault("ns3::TcpL4Protocol::SocketType", StringValue("ns3::TcpLinuxReno"));
    Config::SetDefault("ns3::TcpSocketBase::Sack", BooleanValue(true));
    Config::SetDefault("ns3::TcpSocket::SegmentSize", UintegerValue(segment));
    Config::SetDefault("ns3::TcpSocket::RcvBufSize", UintegerValue(window * segment));
    Config::SetDefault("ns3::TcpSocket::SndBufSize", UintegerValue(4 * window * segment));
    Config::SetDefault("ns3::TcpSocket::InitialCwnd", UintegerValue(2));
    Config::SetDefault("ns3::TcpSocket::DelAckCount", UintegerValue(1));
    Config::SetDefault("ns3::TcpSocketBase::MinRto", TimeValue(MilliSeconds(200)));

    NodeContainer nodes(2);
    PointToPointHelper link;
    link.SetDeviceAttribute("DataRate", StringValue("100Mbps"));
    link.SetChannelAttribute("Delay", TimeValue(MicroSeconds(rtt * 500)));
    link.SetQueue("ns3::DropTailQueue", "MaxSize", StringValue("1p"));
    auto devices = link.Install(nodes);
    InternetStackHelper stack;
    stack.Install(nodes);
    TrafficControlHelper control;
    control.SetRootQueueDisc("ns3::FifoQueueDisc", "MaxSize", StringValue(queue));
    auto discs = control.Install(devices.Get(0));
    TrafficControlHelper back;
    back.SetRootQueueDisc("ns3::FifoQueueDisc", "MaxSize", StringValue("100000p"));
    back.Install(devices.Get(1));
    Ipv4AddressHelper addresses;
    addresses.SetBase("10.0.0.0", "255.255.255.0");
    auto interfaces = addresses.Assign(devices);

    auto disc = discs.Get(0);
    disc->TraceConnectWithoutContext("Enqueue", Callback<void, Ptr<const QueueDiscItem>>([](auto) { ++arrived; }));
    disc->TraceConnectWithoutContext("Drop", Callback<void, Ptr<const QueueDiscItem>>([](auto) { ++dropped; }));
    disc->TraceConnectWithoutContext("SojournTime", Callback<void, Time>([](Time time) {
                                         waited += time.GetSeconds();
                                         ++left;
                                     }));

    PacketSinkHelper sinks("ns3::TcpSocketFactory", InetSocketAddress(Ipv4Address::GetAny(), 5000));
    auto sink = sinks.Install(nodes.Get(1));
    sink.Get(0)->TraceConnectWithoutContext(
        "Rx",
        Callback<void, Ptr<const Packet>, const Address&>([](auto packet, auto&) { received += packet->GetSize(); }));
    auto jitter = CreateObject<UniformRandomVariable>();
    for (int i = 0; i < flows; ++i)
    {
        BulkSendHelper source("ns3::TcpSocketFactory", InetSocketAddress(interfaces.GetAddress(1), 5000));
        source.SetAttribute("SendSize", UintegerValue(segment));
        auto app = source.Install(nodes.Get(0));
        app.Start(Seconds(jitter->GetValue(0, std::atof(argv[6]))));
    }

    Numbers warm{};
    Simulator::Schedule(Seconds(10), Callback<void>([&warm]() { warm = Counted(); }));
    Simulator::Stop(Seconds(seconds));
    Simulator::Run();
    const double base = rtt + (1500 + 40) * 8.0 / 1e5;
    const auto line = [&](const Numbers& from, double span) {
        const double lost = dropped - from.dropped, in = arrived - from.arrived;
        std::printf("\"goodput\":%.6f,\"loss\":%.8f,\"rtt_ms\":%.4f",
                    (received - from.received) / double(segment) / (span * 1e3),
                    lost / (in + lost),
                    base + 1e3 * (waited - from.waited) / (left - from.left));
    };
    std::printf("{\"all\":{");
    line({}, seconds);
    std::printf("},\"settled\":{");
    line(warm, seconds - 10);
    std::printf("}}\n");
    Simulator::Destroy();
    return 0;
}
