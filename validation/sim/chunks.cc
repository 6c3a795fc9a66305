// A transfer in chunks whose streams a tuner chooses, in ns-3: the second opinion on sim/chunks.tcl, which says what it
// does and says it alike. The tuner is asked while the clock of the simulation stands still.
//
//   tuner=COMMAND      connections=fresh|kept      know=window (empty: the tuner is not told the windows)
//   events="t k v ..."   at second t, set rtt (ms) or rate (bit/s) of the path
//
// Fresh streams connect two round trips after the chunk was decided, which is for the requests on a control connection that
// is not simulated; a kept stream that is new connects after one. The handshake, which comes on top, is TCP's own and may
// meet a full queue; ns-2's NewReno has one of a packet too (syn_). Connections end in due form, beside the next chunk.
#include "path.h"
#include "stream.h"
#include "tuner.h"

#include <cmath>
#include <memory>
#include <vector>

template <typename... Values>
static std::string
Format(const char* form, Values... values)
{
    char text[400];
    std::snprintf(text, sizeof text, form, values...);
    return text;
}

static double
Clock()
{
    return Simulator::Now().GetSeconds();
}

class Transfer
{
  public:
    Transfer(Path& path, const Words& words)
        : m_path(path),
          m_kept(words.Text("connections") == "kept"),
          m_told(words.Text("know") == "window"),
          m_tuner(words.Text("tuner"))
    {
        if (!m_kept && words.Text("connections") != "fresh")
        {
            Fail("not known: connections=" + words.Text("connections"));
        }
        Decide(m_tuner.Hear());
        Begin();
        Simulator::Schedule(Seconds(5), &Transfer::Sample, this);
    }

    void Say() const
    {
        std::printf("{\"sample\":[%.0f,%lu,%lu]}\n", Clock(), Counted().acked, m_streams);
    }

  private:
    // Packets of the transfer, and what the path's queue has seen.
    struct Numbers
    {
        uint64_t acked, sent, again, departed;
        double waited;
    };

    Numbers Counted() const
    {
        Numbers sum{0, 0, 0, m_path.departed, m_path.waited};
        for (const auto& stream : m_all)
        {
            sum.acked += stream->Acked();
            sum.sent += stream->sent;
            sum.again += stream->again;
        }
        return sum;
    }

    void Decide(const std::string& line)
    {
        m_streams = Tuner::Count(line, "streams", 1e4);
        m_packets = std::max<uint64_t>(m_streams, std::llround(Tuner::Count(line, "bytes", 1e15) / double(m_path.packet)));
    }

    void Begin()
    {
        ++m_chunk;
        m_begun = Clock();
        m_stopped = false;
        m_start = Counted();
        m_marked = m_start.acked;
        m_shortest = m_path.queue->GetNPackets();
        m_rtt = m_path.rtt;
        Simulator::Schedule(Seconds(1.5), &Transfer::Marker, this, m_chunk);
        Simulator::Schedule(Seconds(0.05), &Transfer::Watch, this, m_chunk);
        m_kept ? BeginKept() : BeginFresh();
    }

    void BeginFresh()
    {
        m_left = m_streams;
        for (uint64_t i = 0; i < m_streams; ++i)
        {
            Open(m_packets * (i + 1) / m_streams - m_packets * i / m_streams, 2 * m_path.BaseRtt());
        }
    }

    void BeginKept()
    {
        while (m_sending.size() > m_streams)
        {
            m_sending.back()->Drain();
            m_sending.pop_back();
        }
        while (m_sending.size() < m_streams)
        {
            m_sending.push_back(Open(0, m_path.BaseRtt()));
        }
        Simulator::Schedule(Seconds(0.05), &Transfer::Poll, this, m_chunk);
    }

    // Streams are never deleted, for their packets may be under way.
    Stream* Open(uint64_t packets, double later)
    {
        m_all.push_back(std::make_unique<Stream>(m_path, packets, [this] { Finished(); }));
        Stream* stream = m_all.back().get();
        Simulator::Schedule(Seconds(later + m_jitter->GetValue(0, 0.005)), &Stream::Open, stream);
        return stream;
    }

    void Finished()
    {
        if (!m_kept && --m_left == 0)
        {
            Ended();
        }
    }

    // Kept streams: the chunk ends when as much was acknowledged. Asks again after half of the time it should still take.
    void Poll(uint64_t chunk)
    {
        if (chunk != m_chunk)
        {
            return;
        }
        const uint64_t acked = Counted().acked - m_start.acked;
        if (acked >= m_packets)
        {
            Ended();
            return;
        }
        const double rate = std::max<uint64_t>(1, acked) / (Clock() - m_begun);
        const double wait = std::clamp(0.5 * (m_packets - acked) / rate, 0.02, 1.0);
        Simulator::Schedule(Seconds(wait), &Transfer::Poll, this, chunk);
    }

    void Ended()
    {
        const Numbers end = Counted();
        const uint64_t acked = end.acked - m_start.acked;
        const double lost = (end.again - m_start.again) / double(std::max<uint64_t>(1, end.sent - m_start.sent));
        const double wait =
            (end.waited - m_start.waited) / std::max<uint64_t>(1, end.departed - m_start.departed);
        const double least = std::min(m_rtt, m_path.rtt) + 1e3 * (m_shortest + 1) * m_path.packet * 8 / m_path.rate;
        std::string report =
            Format("{\"streams\":%lu,\"bytes\":%lu,\"seconds\":%.6f,\"rtt_ms\":%.4f,\"min_rtt_ms\":%.4f,\"loss\":%.7f",
                   m_streams, acked * m_path.packet, Clock() - m_begun, 1e3 * (m_path.BaseRtt() + wait), least, lost);
        report += m_told ? Format(",\"window_bytes\":%u}", m_path.window * m_path.packet) : "}";
        std::printf("{\"chunk\":[%.3f,%.3f,%lu,%lu]}\n", m_begun, Clock(), m_streams, acked);
        Decide(m_tuner.Ask(report));
        Begin();
    }

    void Marker(uint64_t chunk)
    {
        if (chunk != m_chunk || m_stopped)
        {
            return;
        }
        const uint64_t acked = Counted().acked;
        const double rate = (acked - m_marked) * m_path.packet * 8 / 1.5;
        m_marked = acked;
        const auto answer = m_tuner.Ask(Format("{\"elapsed\":%.4f,\"rate_bps\":%.1f}", Clock() - m_begun, rate));
        m_stopped = Tuner::Flag(answer, "stop");
        if (!m_stopped)
        {
            Simulator::Schedule(Seconds(1.5), &Transfer::Marker, this, chunk);
        }
        else if (m_kept)
        {
            Ended();
        }
        else
        {
            // The last one that ends here begins the next chunk, whose streams are not to be drained.
            for (size_t at = 0, count = m_all.size(); at < count; ++at)
            {
                m_all[at]->Drain();
            }
        }
    }

    void Watch(uint64_t chunk)
    {
        if (chunk == m_chunk)
        {
            m_shortest = std::min(m_shortest, m_path.queue->GetNPackets());
            m_rtt = std::min(m_rtt, m_path.rtt);
            Simulator::Schedule(Seconds(0.05), &Transfer::Watch, this, chunk);
        }
    }

    void Sample()
    {
        Say();
        Simulator::Schedule(Seconds(5), &Transfer::Sample, this);
    }

    Path& m_path;
    const bool m_kept, m_told;
    Tuner m_tuner;
    Ptr<UniformRandomVariable> m_jitter = CreateObject<UniformRandomVariable>();
    std::vector<std::unique_ptr<Stream>> m_all;
    std::vector<Stream*> m_sending;       // kept ones
    uint64_t m_streams = 0, m_packets = 0; // as decided
    // Of the present chunk: its number, its start, packets at the last marker, fresh streams that are not through, the
    // shortest queue and round trip.
    uint64_t m_chunk = 0;
    double m_begun = 0;
    Numbers m_start{};
    uint64_t m_marked = 0, m_left = 0;
    uint32_t m_shortest = 0;
    double m_rtt = 0;
    bool m_stopped = false;
};

int
main(int argc, char** argv)
{
    const Words words(argc, argv, {{"tuner", ""}, {"connections", "fresh"}, {"know", "window"}});
    Path path(words);
    Transfer transfer(path, words);
    Simulator::Stop(Seconds(words.Number("time")));
    Simulator::Run();
    transfer.Say();
    return 0;
}
