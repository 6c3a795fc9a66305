// One TCP connection that sends, in ns-3.
#pragma once

#include "path.h"

#include <algorithm>
#include <functional>
#include <utility>

class Stream
{
  public:
    // `packets` to send, none for no end; `finished` is called when they were acknowledged, or what a drained one had.
    Stream(const Path& path, uint64_t packets, std::function<void()> finished)
        : m_path(path),
          m_left(packets ? packets * path.segment : UINT64_MAX),
          m_finished(finished)
    {
    }

    // Connects, with a handshake that takes a round trip and may meet a full queue.
    void Open()
    {
        if (m_left == 0)
        {
            Finish();
            return;
        }
        m_socket = Socket::CreateSocket(m_path.nodes.Get(0), TcpSocketFactory::GetTypeId());
        m_socket->SetConnectCallback(MakeNullCallback<void, Ptr<Socket>>(),
                                     Callback<void, Ptr<Socket>>([](auto) { Fail("a connection was not accepted"); }));
        m_socket->SetCloseCallbacks(MakeNullCallback<void, Ptr<Socket>>(),
                                    Callback<void, Ptr<Socket>>([](auto) { Fail("a connection broke"); }));
        m_socket->SetSendCallback(Callback<void, Ptr<Socket>, uint32_t>([this](auto, auto) { Fill(); }));
        m_socket->TraceConnectWithoutContext(
            "Tx",
            Callback<void, Ptr<const Packet>, const TcpHeader&, Ptr<const TcpSocketBase>>(
                [this](auto data, auto& header, auto) { Sent(data->GetSize(), header.GetSequenceNumber()); }));
        m_socket->Bind();
        m_socket->Connect(m_path.there);
    }

    // Sends nothing new any more; what is on its way arrives.
    void Drain()
    {
        m_left = 0;
        if (m_socket && m_put > 0 && Waiting() == 0)
        {
            Finish();
        }
    }

    uint64_t Acked() const
    {
        return (m_put - Waiting()) / m_path.segment;
    }

    uint64_t sent = 0, again = 0; // packets with data

  private:
    uint64_t Waiting() const
    {
        return m_socket ? m_path.sendBuffer - m_socket->GetTxAvailable() : 0;
    }

    // Called when connected and with each acknowledgement. No more than a window stands in the buffer, so that one that
    // drains has little to send.
    void Fill()
    {
        const uint64_t most = uint64_t(m_path.window) * m_path.segment;
        while (m_left > 0 && Waiting() + m_path.segment <= most)
        {
            m_socket->Send(Create<Packet>(m_path.segment));
            m_put += m_path.segment;
            m_left -= m_path.segment;
        }
        if (m_left == 0 && Waiting() == 0)
        {
            Finish();
        }
    }

    void Sent(uint32_t bytes, SequenceNumber32 from)
    {
        if (bytes == 0)
        {
            return;
        }
        ++sent;
        again += sent > 1 && from < m_next;
        m_next = sent > 1 ? std::max(m_next, from + bytes) : from + bytes;
    }

    void Finish()
    {
        if (std::exchange(m_over, true))
        {
            return;
        }
        if (m_socket)
        {
            m_socket->Close();
        }
        m_finished();
    }

    const Path& m_path;
    uint64_t m_left, m_put = 0; // bytes yet to be given to TCP, and given
    std::function<void()> m_finished;
    Ptr<Socket> m_socket;
    SequenceNumber32 m_next;
    bool m_over = false;
};
