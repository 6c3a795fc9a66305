# N flows that never end, over one path. Prints goodput and loss of the whole run and of what follows the first 10 s.
#   spread=SECONDS  over which the starts are spread; flows that start within a round trip stay in step for long
source [file join [file dirname [info script]] path.tcl]

set flows {}
for {set i 0} {$i < $P(flows)} {incr i} {
    set tcp [flow]
    set ftp [new Application/FTP]
    $ftp attach-agent $tcp
    $ns at [expr {[$jitter value] * $P(spread)}] "$ftp start"
    lappend flows $tcp
}

proc look {} {
    global flows monitor
    set acked 0
    foreach tcp $flows { incr acked [expr {[$tcp set ack_] + 1}] }
    list $acked [$monitor set pdrops_] [$monitor set parrivals_] [$monitor set pdepartures_] [waited]
}

set warm {0 0 0 0 0}
$ns at 10.0 { set warm [look] }
$ns at $P(time) {
    foreach {acked drops arrivals departures wait} [look] {}
    foreach {acked10 drops10 arrivals10 departures10 wait10} $warm {}
    puts [format {{"goodput":%.6f,"goodput10":%.6f,"loss":%.8f,"loss10":%.8f,"rtt_ms":%.4f,"rtt10_ms":%.4f}} \
        [expr {$acked / ($P(time) * 1e3)}] [expr {($acked - $acked10) / (($P(time) - 10) * 1e3)}] \
        [expr {double($drops) / $arrivals}] [expr {double($drops - $drops10) / ($arrivals - $arrivals10)}] \
        [expr {1e3 * ([base_rtt] + $wait / $departures)}] \
        [expr {1e3 * ([base_rtt] + ($wait - $wait10) / ($departures - $departures10))}]]
    exit 0
}
$ns run
