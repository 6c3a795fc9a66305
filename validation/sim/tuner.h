// A tuner: a program at the other end of two pipes, which speaks JSON lines, as `ropewalk model tuner` does.
#pragma once

#include "path.h"

#include <csignal>
#include <poll.h>
#include <sys/prctl.h>
#include <unistd.h>

class Tuner
{
  public:
    explicit Tuner(const std::string& command)
    {
        int to[2], from[2];
        if (pipe(to) || pipe(from))
        {
            Fail("no pipe for the tuner");
        }
        std::signal(SIGPIPE, SIG_IGN);
        const pid_t child = fork();
        if (child < 0)
        {
            Fail("the tuner cannot be started");
        }
        if (child == 0)
        {
            prctl(PR_SET_PDEATHSIG, SIGTERM); // or one that is stuck would hold on to what we write to
            dup2(to[0], STDIN_FILENO);
            dup2(from[1], STDOUT_FILENO);
            for (int end : {to[0], to[1], from[0], from[1]})
            {
                close(end);
            }
            execl("/bin/sh", "sh", "-c", ("exec " + command).c_str(), nullptr);
            _exit(127);
        }
        close(to[0]);
        close(from[1]);
        m_to = to[1];
        m_from = from[0];
    }

    // The next line. The clock of the simulation stands still meanwhile, the one on the wall does not.
    std::string Hear()
    {
        for (;;)
        {
            if (const auto end = m_heard.find('\n'); end != std::string::npos)
            {
                const std::string line = m_heard.substr(0, end);
                m_heard.erase(0, end + 1);
                return line;
            }
            pollfd ready{m_from, POLLIN, 0};
            if (poll(&ready, 1, 60'000) == 0)
            {
                Fail("the tuner has said nothing for a minute");
            }
            char bytes[4096];
            const auto count = read(m_from, bytes, sizeof bytes);
            if (count <= 0)
            {
                Fail("the tuner has ended" + (m_heard.empty() ? "" : " after: " + m_heard));
            }
            m_heard.append(bytes, count);
        }
    }

    std::string Ask(const std::string& line)
    {
        const std::string bytes = line + "\n";
        if (write(m_to, bytes.data(), bytes.size()) != ssize_t(bytes.size()))
        {
            Fail("the tuner has ended");
        }
        return Hear();
    }

    // What an object of one level has for a key.
    static std::string Value(const std::string& line, const std::string& key)
    {
        const auto start = "\"" + key + "\":";
        const auto at = line.find(start);
        if (line.empty() || line.front() != '{' || line.back() != '}' || at == std::string::npos)
        {
            Fail("the tuner wrote: " + line);
        }
        const auto from = at + start.size();
        return line.substr(from, line.find_first_of(",}", from) - from);
    }

    static uint64_t Count(const std::string& line, const std::string& key, double most)
    {
        const std::string text = Value(line, key);
        char* end;
        const double value = std::strtod(text.c_str(), &end);
        if (*end || !(value >= 1 && value <= most))
        {
            Fail("the tuner wrote: " + line);
        }
        return value;
    }

    static bool Flag(const std::string& line, const std::string& key)
    {
        const std::string text = Value(line, key);
        if (text != "true" && text != "false")
        {
            Fail("the tuner wrote: " + line);
        }
        return text == "true";
    }

  private:
    int m_to, m_from;
    std::string m_heard;
};
