# A transfer in chunks whose streams a tuner chooses: the tuner is a program at the other end of a pipe, asked while the
# clock of the simulation stands still.
#
#   tuner=COMMAND        speaks JSON lines, as `ropewalk model tuner` does
#   connections=fresh    each chunk opens its streams anew, two round trips after the request, and gives each the same share
#              =kept     streams stay from chunk to chunk and take blocks as they are free; they come and go with the decision
#   know=window          the tuner is told the windows (empty: not)
#   others="a b n ..."   from second a to b, n other flows without end share the path
#   events="t k v ..."   at second t, set rtt (ms) or rate (bit/s) of the path
#   mice=R               R other transfers of 30 packets a second, Poisson
source [file join [file dirname [info script]] path.tcl]
foreach {key value} {connections fresh know window mice 0} { if {![info exists P($key)]} { set P($key) $value } }

set pipe [open "|$P(tuner)" r+]
fconfigure $pipe -buffering line
set active {}       ;# flows that send for the present chunk
set banked 0        ;# packets of those that ended
set banked_sent 0
set banked_again 0
set chunk 0         ;# number of the present chunk
set lowest 0        ;# shortest queue of the present chunk

proc key {line name} {
    if {![regexp "\"$name\":(\[^,\}\]+)" $line -> value]} { error "tuner wrote: $line" }
    return $value
}

# {packets acknowledged, sent, sent again} by the transfer so far.
proc totals {} {
    global active banked banked_sent banked_again
    set acked $banked; set sent $banked_sent; set again $banked_again
    foreach tcp $active {
        incr acked [expr {[$tcp set ack_] + 1}]
        incr sent [$tcp set ndatapack_]
        incr again [$tcp set nrexmitpack_]
    }
    list $acked $sent $again
}

# The flow ended: its numbers remain. Agents are never deleted, for acknowledgements may be under way to them.
proc bank {tcp} {
    global active banked banked_sent banked_again
    set at [lsearch -exact $active $tcp]
    set active [lreplace $active $at $at]
    incr banked [expr {[$tcp set ack_] + 1}]
    incr banked_sent [$tcp set ndatapack_]
    incr banked_again [$tcp set nrexmitpack_]
}

# Sends nothing new any more; what is on its way arrives, and `done` follows.
proc drain {tcp} {
    $tcp set seqno_ [expr {[$tcp set maxseq_] + 1}]
    if {[$tcp set ack_] + 1 >= [$tcp set seqno_]} { $tcp done }
}

Agent/TCP instproc done {} {
    global own
    if {[info exists own($self)]} { unset own($self); finished $self }
}

proc decide {line} {
    global P streams packets
    set streams [key $line streams]
    set packets [expr {max($streams, round([key $line bytes] / $P(packet)))}]
}

proc begin {} {
    global ns P chunk begun at_start wait_start departed_start marker_acked lowest monitor want stopped
    incr chunk
    set begun [$ns now]
    set stopped 0
    set at_start [totals]
    set marker_acked [lindex $at_start 0]
    set wait_start [waited]
    set departed_start [$monitor set pdepartures_]
    set lowest [$monitor set pkts_]
    set want $P(rtt)
    $ns at [expr {[$ns now] + 1.5}] "marker $chunk"
    $ns at [expr {[$ns now] + 0.05}] "watch $chunk"
    begin_$P(connections)
}

proc begin_fresh {} {
    global ns P streams packets own active left chunk jitter
    set left $streams
    for {set i 0} {$i < $streams} {incr i} {
        set share [expr {$packets * ($i + 1) / $streams - $packets * $i / $streams}]
        set tcp [flow]
        set own($tcp) 1
        lappend active $tcp
        $ns at [expr {[$ns now] + 2 * [base_rtt] + [$jitter value] * 0.005}] "go $tcp $share"
    }
}
proc go {tcp share} {
    global stopped
    if {$stopped} { $tcp done } else { $tcp advanceby $share }
}

proc begin_kept {} {
    global ns streams own active sending jitter chunk
    while {[llength $sending] > $streams} {
        set tcp [lindex $sending end]
        set sending [lrange $sending 0 end-1]
        drain $tcp
    }
    while {[llength $sending] < $streams} {
        set tcp [flow]
        set own($tcp) 1
        lappend active $tcp
        lappend sending $tcp
        $ns at [expr {[$ns now] + [base_rtt] + [$jitter value] * 0.005}] "open_kept $tcp"
    }
    $ns at [expr {[$ns now] + 0.05}] "poll $chunk"
}
proc open_kept {tcp} {
    global sending
    if {[lsearch -exact $sending $tcp] >= 0} { $tcp advanceby 1000000000 } else { $tcp done }
}
set sending {}

# Kept streams: the chunk ends when as much was acknowledged. Asks again after half of the time that it should still take.
proc poll {number} {
    global ns P chunk packets at_start begun
    if {$number != $chunk} return
    set acked [expr {[lindex [totals] 0] - [lindex $at_start 0]}]
    if {$acked >= $packets} { ended; return }
    set rate [expr {max(1, $acked) / ([$ns now] - $begun)}]
    set wait [expr {min(1.0, max(0.02, 0.5 * ($packets - $acked) / $rate))}]
    $ns at [expr {[$ns now] + $wait}] "poll $number"
}

proc finished {tcp} {
    global P left
    bank $tcp
    if {$P(connections) eq "fresh"} {
        incr left -1
        if {$left == 0} ended
    }
}

proc ended {} {
    global ns P pipe streams at_start begun wait_start departed_start monitor lowest want
    foreach {acked sent again} [totals] {}
    foreach {acked0 sent0 again0} $at_start {}
    set seconds [expr {[$ns now] - $begun}]
    set departed [expr {max(1, [$monitor set pdepartures_] - $departed_start)}]
    set rtt [expr {1e3 * ([base_rtt] + ([waited] - $wait_start) / $departed)}]
    set least [expr {min($want, $P(rtt)) + 1e3 * ($lowest + 1) * $P(packet) * 8 / $P(rate)}]
    set report [format {"streams":%d,"bytes":%d,"seconds":%.6f,"rtt_ms":%.4f,"min_rtt_ms":%.4f,"loss":%.7f} $streams \
        [expr {($acked - $acked0) * $P(packet)}] $seconds $rtt $least [expr {($again - $again0) / double(max(1, $sent - $sent0))}]]
    if {$P(know) eq "window"} { append report [format {,"window_bytes":%d} [expr {$P(window) * $P(packet)}]] }
    puts $pipe "\{$report\}"
    puts [format {{"chunk":[%.3f,%.3f,%d,%d]}} $begun [$ns now] $streams [expr {$acked - $acked0}]]
    decide [gets $pipe]
    begin
}

proc marker {number} {
    global ns P chunk pipe begun marker_acked active stopped
    if {$number != $chunk || $stopped} return
    set acked [lindex [totals] 0]
    puts $pipe [format {{"elapsed":%.4f,"rate_bps":%.1f}} [expr {[$ns now] - $begun}] \
        [expr {($acked - $marker_acked) * $P(packet) * 8 / 1.5}]]
    set marker_acked $acked
    if {[key [gets $pipe] stop]} {
        set stopped 1
        if {$P(connections) eq "fresh"} { foreach tcp $active { drain $tcp } } else { ended }
        return
    }
    $ns at [expr {[$ns now] + 1.5}] "marker $number"
}

proc watch {number} {
    global ns chunk monitor lowest want P
    if {$number != $chunk} return
    set lowest [expr {min($lowest, [$monitor set pkts_])}]
    set want [expr {min($want, $P(rtt))}]
    $ns at [expr {[$ns now] + 0.05}] "watch $number"
}

proc change {key value} {
    global ns P here there
    set P($key) $value
    foreach {from to} [list $here $there $there $here] {
        set link [[$ns link $from $to] link]
        if {$key eq "rtt"} { $link set delay_ [expr {$value / 2000.0}] } else { $link set bandwidth_ $value }
    }
}
foreach {when key value} $P(events) { $ns at $when "change $key $value" }

foreach {from to count} $P(others) {
    for {set i 0} {$i < $count} {incr i} {
        set tcp [flow]
        $ns at [expr {$from + [$jitter value]}] "$tcp advanceby 1000000000"
        $ns at $to "drain $tcp"
    }
}
proc mouse {} {
    global ns P gap
    [flow] advanceby 30
    $ns at [expr {[$ns now] + [$gap value]}] mouse
}
if {$P(mice) > 0} {
    set gap [new RandomVariable/Exponential]
    $gap set avg_ [expr {1.0 / $P(mice)}]
    $ns at 1.0 mouse
}

proc sample {} {
    global ns streams
    puts [format {{"sample":[%d,%d,%d]}} [expr {round([$ns now])}] [lindex [totals] 0] $streams]
    $ns at [expr {[$ns now] + 5}] sample
}
$ns at 5.0 sample
$ns at $P(time) { sample; flush stdout; exit 0 }
$ns at 0.0 { decide [gets $pipe]; begin }
$ns run
