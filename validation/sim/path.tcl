# One path for ns-2: a sender and a receiver with one link between them, whose queue is the bottleneck.
# What a run needs comes as KEY=VALUE words; a later word overrides an earlier one.

array set P {
    rate 100e6 rtt 100 queue 100 discipline DropTail packet 1500 window 43 loss 0 seed 1 time 60 others {} events {}
}
foreach word $argv {
    set at [string first = $word]
    set P([string range $word 0 [expr {$at - 1}]]) [string range $word [expr {$at + 1}] end]
}

# The link's packet is packetSize_ and 40 bytes of headers.
Agent/TCP set packetSize_ [expr {$P(packet) - 40}]
Agent/TCP set window_ $P(window)
# As Table 1 of the report on GridFTP-APT has it; linterm_ is 1/max_p.
Queue/RED set thresh_ 25
Queue/RED set maxthresh_ 75
Queue/RED set linterm_ 10
Queue/RED set q_weight_ 0.002
Queue/RED set gentle_ true
Queue/RED set bytes_ false
Queue/RED set queue_in_bytes_ false

ns-random $P(seed)
set jitter [new RandomVariable/Uniform]
$jitter set min_ 0
$jitter set max_ 1

set ns [new Simulator]
set here [$ns node]
set there [$ns node]
$ns simplex-link $here $there $P(rate) [expr {$P(rtt) / 2000.0}] $P(discipline)
$ns simplex-link $there $here $P(rate) [expr {$P(rtt) / 2000.0}] DropTail
$ns queue-limit $here $there $P(queue)
$ns queue-limit $there $here 100000
if {$P(loss) > 0} {
    set random_loss [new ErrorModel]
    $random_loss set rate_ $P(loss)
    $random_loss unit pkt
    $random_loss drop-target [new Agent/Null]
    $ns link-lossmodel $random_loss $here $there
}
set monitor [$ns monitor-queue $here $there [open /dev/null w]]
set integrator [$monitor get-pkts-integrator]

proc flow {{connection ""}} {
    global ns here there
    set tcp [new Agent/TCP/Newreno]
    set sink [new Agent/TCPSink]
    $ns attach-agent $here $tcp
    $ns attach-agent $there $sink
    $ns connect $tcp $sink
    return $tcp
}

# Round trip of a packet that meets no queue, in seconds.
proc base_rtt {} {
    global P
    expr {$P(rtt) / 1e3 + ($P(packet) + 40) * 8.0 / $P(rate)}
}

# Packet-seconds waited so far: over departures it is the mean wait (Little).
proc waited {} {
    global ns integrator
    $integrator newpoint [$ns now] [$integrator set lasty_]
    return [$integrator set sum_]
}
