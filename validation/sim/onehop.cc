// N flows that never end, over one path, in ns-3: the second opinion on sim/steady.tcl. Prints one JSON line.
//   flows=N
//   spread=SECONDS  over which the starts are spread; flows that start within a round trip stay in step for long
#include "path.h"

struct Numbers
{
    uint64_t arrived, departed, dropped, received;
    double waited;
};

int
main(int argc, char** argv)
{
    const Words words(argc, argv, {{"flows", "1"}, {"spread", "1"}});
    const double seconds = words.Number("time");
    Path path(words);

    uint64_t received = 0;
    path.sink->TraceConnectWithoutContext(
        "Rx",
        Callback<void, Ptr<const Packet>, const Address&>([&](auto packet, auto&) { received += packet->GetSize(); }));
    auto jitter = CreateObject<UniformRandomVariable>();
    for (int i = 0; i < words.Number("flows"); ++i)
    {
        BulkSendHelper source("ns3::TcpSocketFactory", path.there);
        source.SetAttribute("SendSize", UintegerValue(path.segment));
        auto app = source.Install(path.nodes.Get(0));
        app.Start(Seconds(jitter->GetValue(0, words.Number("spread"))));
    }

    const auto counted = [&] {
        return Numbers{path.arrived, path.departed, path.dropped, received, path.waited};
    };
    Numbers warm{};
    Simulator::Schedule(Seconds(10), Callback<void>([&] { warm = counted(); }));
    Simulator::Stop(Seconds(seconds));
    Simulator::Run();
    const Numbers end = counted();
    const auto line = [&](const Numbers& from, double span) {
        const double lost = end.dropped - from.dropped, in = end.arrived - from.arrived;
        std::printf("\"goodput\":%.6f,\"loss\":%.8f,\"rtt_ms\":%.4f",
                    (end.received - from.received) / double(path.segment) / (span * 1e3),
                    lost / (in + lost),
                    1e3 * (path.BaseRtt() + (end.waited - from.waited) / (end.departed - from.departed)));
    };
    std::printf("{\"all\":{");
    line({}, seconds);
    std::printf("},\"settled\":{");
    line(warm, seconds - 10);
    std::printf("}}\n");
    Simulator::Destroy();
    return 0;
}
