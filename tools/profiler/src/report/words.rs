//! Causes in plain words, for readers who do not know TCP.

use crate::profile::FailureKind;
use crate::verdict::CauseKind;

/// The name of a cause, as a heading.
pub(super) fn name(kind: CauseKind) -> &'static str {
    match kind {
        CauseKind::SourceDisk => "Source disk",
        CauseKind::DestinationDisk => "Destination disk",
        CauseKind::CpuCopy => "Processor: moving data",
        CauseKind::CpuChecksum => "Processor: checksums",
        CauseKind::CpuEncryption => "Processor: encryption",
        CauseKind::CpuInterrupt => "Processor: network interrupts",
        CauseKind::CpuCompeting => "Processor: other programs",
        CauseKind::CpuSteal => "Processor: other virtual machines",
        CauseKind::CpuProgram => "Processor: the transfer program",
        CauseKind::SenderBuffer => "Sender's buffer",
        CauseKind::ReceiverWindow => "Receiver's window",
        CauseKind::KernelCeiling => "Limit of the operating system",
        CauseKind::CongestionLoss => "Congestion on the path",
        CauseKind::NonCongestiveLoss => "Losses without congestion",
        CauseKind::PathCapacity => "Path is full",
        CauseKind::PeerServer => "A program that waits",
        CauseKind::SmallFiles => "Small files",
        CauseKind::TooManyStreams => "Too many streams",
        CauseKind::AsymmetricPath => "Path slower in this direction",
    }
}

/// The text after "because"; `host` is the host, if one is known, and `receives` is true if the
/// data went there.
pub(super) fn because(kind: CauseKind, host: Option<&str>, receives: bool) -> String {
    let at = host.unwrap_or("one of the machines");
    match kind {
        CauseKind::SourceDisk => format!("the disk of {at} could not read the data any faster"),
        CauseKind::DestinationDisk => format!("the disk of {at} could not write the data any faster"),
        CauseKind::CpuCopy => format!("a processor of {at} was fully busy moving data through the system"),
        CauseKind::CpuChecksum => format!("a processor of {at} was fully busy computing checksums"),
        CauseKind::CpuEncryption => format!("a processor of {at} was fully busy with encryption"),
        CauseKind::CpuInterrupt => format!("a processor of {at} was fully busy serving the network card"),
        CauseKind::CpuCompeting => format!("other programs on {at} took the processor away from it"),
        CauseKind::CpuSteal => format!("other virtual machines beside {at} took the processor away from it"),
        CauseKind::CpuProgram => format!("the transfer program kept a processor of {at} fully busy"),
        CauseKind::SenderBuffer => {
            format!("the program on {at} may have only little data on its way at a time")
        }
        CauseKind::ReceiverWindow => format!("{at} lets only little data be on its way to it at a time"),
        CauseKind::KernelCeiling => {
            format!("a setting of the operating system on {at} lets only little data be on its way at a time")
        }
        CauseKind::CongestionLoss => {
            "the network was crowded and lost data, which had to be sent again".into()
        }
        CauseKind::NonCongestiveLoss => {
            "the network lost data although it was not crowded, and each loss slows the sender down".into()
        }
        CauseKind::PathCapacity => "the network carries no more".into(),
        CauseKind::PeerServer if receives => format!("the program on {at} did not take the data any faster"),
        CauseKind::PeerServer if host.is_some() => {
            format!("the program on {at} did not supply the data any faster")
        }
        CauseKind::PeerServer => "the server that has the data did not supply it any faster".into(),
        CauseKind::SmallFiles => "its many small files each wait for answers from far away".into(),
        CauseKind::TooManyStreams => "too many connections at once got in each other's way".into(),
        CauseKind::AsymmetricPath => "the network is slower in this direction than in the other".into(),
    }
}

/// An explanation in some sentences, for readers who meet this cause for the first time.
pub(super) fn meaning(kind: CauseKind, receives: bool) -> &'static str {
    match kind {
        CauseKind::SourceDisk => {
            "Data can leave a machine only as fast as its disk reads it. The network waited for the disk, so nothing \
             that is changed in the network would help."
        }
        CauseKind::DestinationDisk => {
            "What arrives has to be written. When the disk falls behind, the receiver asks the sender to wait, so \
             nothing that is changed in the network would help."
        }
        CauseKind::CpuCopy => {
            "Every byte passes through the operating system: from the disk, to the network card, or the other way. One \
             connection keeps one processor busy with that; several connections can use several."
        }
        CauseKind::CpuChecksum => {
            "Checksums prove that what arrived is what was sent, and cost processor time for each byte. Some kinds are \
             much cheaper than others."
        }
        CauseKind::CpuEncryption => {
            "Encryption costs processor time for each byte. One connection keeps one processor busy with it; several \
             connections can use several."
        }
        CauseKind::CpuInterrupt => {
            "The network card interrupts a processor for what arrives. If all interrupts go to one processor, that one \
             is full while others idle."
        }
        CauseKind::CpuCompeting => {
            "The transfer was ready to go on, but its processor was working for somebody else: other programs on this \
             machine."
        }
        CauseKind::CpuSteal => {
            "This machine is a virtual one that shares its processors with others. They had them while the transfer was \
             ready to go on; nothing that runs in this machine is to blame."
        }
        CauseKind::CpuProgram => {
            "The program that moves the data did not get more done with one processor. More connections or files at the \
             same time may use more processors."
        }
        CauseKind::SenderBuffer => {
            "Data that is on its way has to be kept until the other side has confirmed it. The longer the way, the more \
             that is. The program asked for less memory than that, so it sends a little and waits."
        }
        CauseKind::ReceiverWindow => {
            "A receiver says how much it can take before it has to be asked again. The longer the way, the more has to be \
             on its way at once. Here it was less than the network could carry, so the sender waits."
        }
        CauseKind::KernelCeiling => {
            "Data that is on its way has to be kept in memory until it is confirmed. The longer the way, the more that is. \
             The operating system has an upper limit for it, often made for short ways, and the transfer ran into it: it \
             sends a little and waits. Nothing is broken, a setting is too small."
        }
        CauseKind::CongestionLoss => {
            "Others use the same network, or it has a narrow place. What does not fit is thrown away, the sender sends it \
             again and slows down. That is how machines share a network."
        }
        CauseKind::NonCongestiveLoss => {
            "Data is lost although the network has room: a bad cable, dirty optics, a faulty port, radio. The sender takes \
             losses for a crowded network and slows down, the more so the longer the way."
        }
        CauseKind::PathCapacity => {
            "The transfer used what the network has. Nothing is wrong with the machines."
        }
        CauseKind::PeerServer if receives => {
            "The network, disks and processors that were looked at had room, but what arrived was left lying while the program \
             rested. The reason is likely something that was not looked at: a limit in the program, the storage behind it."
        }
        CauseKind::PeerServer => {
            "The network, disks and processors that were looked at had room, but there was too little to send. The reason is \
             likely something that was not looked at: the program that has the data, a limit in it, the storage behind it."
        }
        CauseKind::SmallFiles => {
            "For each file the two sides talk to each other, and each word takes its time over a long way. With small \
             files the talking takes longer than the data."
        }
        CauseKind::TooManyStreams => {
            "Several connections help up to a point. Beyond it they compete with each other for the network, the disks and \
             the processors."
        }
        CauseKind::AsymmetricPath => {
            "The same machines move data faster the other way. Something on the way, or a setting of the sending side, \
             differs between the two directions."
        }
    }
}

/// The reason of a failure, as a heading.
pub(super) fn failure(kind: FailureKind) -> &'static str {
    match kind {
        FailureKind::Authentication => "Log-in refused",
        FailureKind::ChecksumMismatch => "What arrived is not what was sent",
        FailureKind::ConnectionLost => "Connection lost",
        FailureKind::Interrupted => "Broken off",
        FailureKind::NoSpace => "No space left at the destination",
        FailureKind::NotFound => "Not found",
        FailureKind::Permission => "Permission denied",
        FailureKind::Stalled => "Stalled",
        FailureKind::Unreachable => "Server out of reach",
        FailureKind::Other => "Failed",
    }
}

/// The reason of a failure within a sentence.
pub(super) fn failed(kind: FailureKind) -> String {
    let name = failure(kind);
    name.chars().take(1).flat_map(char::to_lowercase).chain(name.chars().skip(1)).collect()
}

/// An explanation in some sentences, for readers who meet this failure for the first time.
pub(super) fn failure_meaning(kind: FailureKind) -> &'static str {
    match kind {
        FailureKind::Authentication => {
            "The server has to know who asks before it gives or takes data, and did not believe it."
        }
        FailureKind::ChecksumMismatch => {
            "Both sides computed a number from all of the data, and the two differ: the copy is not to be used."
        }
        FailureKind::ConnectionLost => {
            "Data moved until one side, or something between them, ended the connection: a program that died or was \
             stopped, a machine that went down, a firewall."
        }
        FailureKind::Interrupted => {
            "Somebody ended the transfer before it was over. What was measured until then is told."
        }
        FailureKind::NoSpace => {
            "The disk to which the data goes is full, or what the user may use of it is. The network has nothing to do with it."
        }
        FailureKind::NotFound => "There is nothing by the name that was asked for, or there no longer is.",
        FailureKind::Permission => "The path is there, but the user may not read it, or not write there.",
        FailureKind::Stalled => {
            "The connections were still there, but nothing came through them any more, and after a while the transfer was \
             given up."
        }
        FailureKind::Unreachable => {
            "No connection with the server came about, or it ended before any data had moved: it does not run, listens \
             elsewhere, or something between lets nothing pass."
        }
        FailureKind::Other => "The error's text says what is known.",
    }
}

/// The confidence in words.
pub(super) fn sureness(confidence: f64) -> &'static str {
    match confidence {
        c if c >= 0.85 => "very likely",
        c if c >= 0.6 => "likely",
        c if c >= 0.4 => "possible",
        _ => "faint",
    }
}
