// One path for ns-3, as path.tcl has it for ns-2: a sender and a receiver with one link between them, whose queue is the
// bottleneck. What a run needs comes as KEY=VALUE words; a later word overrides an earlier one.
//
// The queue stands in a queue disc with a device queue of one packet, for a full device queue drops without a trace; the
// disc is set by hand, for the one that comes by default is FqCoDel. TcpLinuxReno with SACK: TcpNewReno without it sends
// whole windows again after a timeout.
#pragma once

#include "ns3/applications-module.h"
#include "ns3/core-module.h"
#include "ns3/internet-module.h"
#include "ns3/network-module.h"
#include "ns3/point-to-point-module.h"
#include "ns3/traffic-control-module.h"

#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <map>
#include <sstream>
#include <string>

using namespace ns3;

[[noreturn]] inline void
Fail(const std::string& why)
{
    std::fflush(stdout);
    std::fprintf(stderr, "%s\n", why.c_str());
    std::_Exit(1);
}

// The path's words and a program's own, each with what it is unless it is given.
class Words
{
  public:
    Words(int argc, char** argv, const std::map<std::string, std::string>& own)
    {
        m_values.insert(own.begin(), own.end());
        for (int i = 1; i < argc; ++i)
        {
            const std::string word = argv[i];
            const auto key = word.substr(0, word.find('='));
            if (key.size() == word.size() || !m_values.contains(key))
            {
                Fail("not known: " + word);
            }
            m_values[key] = word.substr(key.size() + 1);
        }
    }

    const std::string& Text(const std::string& key) const
    {
        return m_values.at(key);
    }

    double Number(const std::string& key) const
    {
        return std::atof(Text(key).c_str());
    }

  private:
    std::map<std::string, std::string> m_values{{"rate", "100e6"},
                                                {"rtt", "100"},
                                                {"queue", "100"},
                                                {"discipline", "DropTail"},
                                                {"packet", "1500"},
                                                {"window", "43"},
                                                {"seed", "1"},
                                                {"time", "60"},
                                                {"events", ""}};
};

class Path
{
  public:
    explicit Path(const Words& words);

    // Round trip of a packet that meets no queue, in seconds.
    double BaseRtt() const
    {
        return rtt / 1e3 + (packet + 40) * 8.0 / rate;
    }

    double rate, rtt; // bit/s, ms
    const uint32_t packet, window;
    const uint32_t segment = packet - 40; // bytes of data in a packet
    const uint32_t sendBuffer = 4 * window * segment;
    uint64_t arrived = 0, departed = 0, dropped = 0; // packets at the queue
    double waited = 0;                               // packet-seconds in it: over departures it is the mean wait
    NodeContainer nodes{2};
    Ptr<QueueDisc> queue;
    Ptr<Application> sink;
    Address there; // where connections are accepted

  private:
    void Tcp() const;
    void Discs(const Words& words);
    void Change(const std::string& key, double value);

    NetDeviceContainer m_devices;
};

inline Path::Path(const Words& words)
    : rate(words.Number("rate")),
      rtt(words.Number("rtt")),
      packet(words.Number("packet")),
      window(words.Number("window"))
{
    RngSeedManager::SetSeed(words.Number("seed"));
    Tcp();
    PointToPointHelper link;
    link.SetDeviceAttribute("DataRate", DataRateValue(DataRate(uint64_t(rate))));
    link.SetChannelAttribute("Delay", TimeValue(Seconds(rtt / 2000)));
    link.SetQueue("ns3::DropTailQueue", "MaxSize", StringValue("1p"));
    m_devices = link.Install(nodes);
    InternetStackHelper stack;
    stack.Install(nodes);
    Discs(words);
    Ipv4AddressHelper addresses;
    addresses.SetBase("10.0.0.0", "255.255.255.0");
    there = InetSocketAddress(addresses.Assign(m_devices).GetAddress(1), 5000);
    PacketSinkHelper sinks("ns3::TcpSocketFactory", InetSocketAddress(Ipv4Address::GetAny(), 5000));
    sink = sinks.Install(nodes.Get(1)).Get(0);

    std::istringstream events(words.Text("events"));
    double when, value;
    for (std::string key; events >> when >> key >> value;)
    {
        Simulator::Schedule(Seconds(when), &Path::Change, this, key, value);
    }
}

inline void
Path::Tcp() const
{
    Config::SetDefault("ns3::TcpL4Protocol::SocketType", StringValue("ns3::TcpLinuxReno"));
    Config::SetDefault("ns3::TcpSocketBase::Sack", BooleanValue(true));
    // Their 12 bytes come on top of a segment: a packet would be longer than the link takes, and travel as two.
    Config::SetDefault("ns3::TcpSocketBase::Timestamp", BooleanValue(false));
    Config::SetDefault("ns3::TcpSocket::SegmentSize", UintegerValue(segment));
    Config::SetDefault("ns3::TcpSocket::RcvBufSize", UintegerValue(window * segment));
    Config::SetDefault("ns3::TcpSocket::SndBufSize", UintegerValue(sendBuffer));
    Config::SetDefault("ns3::TcpSocket::InitialCwnd", UintegerValue(2));
    Config::SetDefault("ns3::TcpSocket::DelAckCount", UintegerValue(1));
    Config::SetDefault("ns3::TcpSocketBase::MinRto", TimeValue(MilliSeconds(200)));
    // As Linux has them: a lost SYN costs one second and not three, and six timeouts do not end a connection.
    Config::SetDefault("ns3::TcpSocket::ConnTimeout", TimeValue(Seconds(1)));
    Config::SetDefault("ns3::TcpSocket::DataRetries", UintegerValue(15));
    // Each packet is looked up among all sockets, with those that are closed and wait.
    Config::SetDefault("ns3::TcpSocketBase::MaxSegLifetime", DoubleValue(1));
}

inline void
Path::Discs(const Words& words)
{
    TrafficControlHelper control;
    if (words.Text("discipline") == "RED")
    {
        // As Table 1 of the report on GridFTP-APT has it; LInterm is 1/max_p.
        control.SetRootQueueDisc("ns3::RedQueueDisc",
                                 "MaxSize", StringValue(words.Text("queue") + "p"),
                                 "MinTh", DoubleValue(25),
                                 "MaxTh", DoubleValue(75),
                                 "LInterm", DoubleValue(10),
                                 "QW", DoubleValue(0.002),
                                 "Gentle", BooleanValue(true),
                                 "LinkBandwidth", DataRateValue(DataRate(uint64_t(rate))),
                                 "LinkDelay", TimeValue(Seconds(rtt / 2000)));
    }
    else if (words.Text("discipline") == "DropTail")
    {
        // ns-2's drops the packet that would fill it.
        const auto length = std::to_string(uint64_t(words.Number("queue")) - 1) + "p";
        control.SetRootQueueDisc("ns3::FifoQueueDisc", "MaxSize", StringValue(length));
    }
    else
    {
        Fail("not known: discipline=" + words.Text("discipline"));
    }
    queue = control.Install(m_devices.Get(0)).Get(0);
    TrafficControlHelper back;
    back.SetRootQueueDisc("ns3::FifoQueueDisc", "MaxSize", StringValue("100000p"));
    back.Install(m_devices.Get(1));

    using OfItem = Callback<void, Ptr<const QueueDiscItem>>;
    queue->TraceConnectWithoutContext("Enqueue", OfItem([this](auto) { ++arrived; }));
    queue->TraceConnectWithoutContext("Drop", OfItem([this](auto) { ++dropped; }));
    queue->TraceConnectWithoutContext("SojournTime", Callback<void, Time>([this](Time time) {
                                          waited += time.GetSeconds();
                                          ++departed;
                                      }));
}

inline void
Path::Change(const std::string& key, double value)
{
    if (key == "rtt")
    {
        rtt = value;
        m_devices.Get(0)->GetChannel()->SetAttribute("Delay", TimeValue(Seconds(rtt / 2000)));
    }
    else if (key == "rate")
    {
        rate = value;
        for (uint32_t i = 0; i < 2; ++i)
        {
            m_devices.Get(i)->SetAttribute("DataRate", DataRateValue(DataRate(uint64_t(rate))));
        }
    }
    else
    {
        Fail("not known: event " + key);
    }
}
