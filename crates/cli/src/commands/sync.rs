use clap::Args;

use super::cp::Cp;
use crate::exit::Exit;

#[derive(Debug, Args)]
#[command(after_help = crate::exit::HELP, override_usage = "ropewalk sync [OPTIONS] SOURCE DESTINATION")]
pub struct Sync {
    #[command(flatten)]
    cp: Cp,
}

impl Sync {
    pub fn run(self) -> anyhow::Result<Exit> {
        self.cp.bringing_up_to_date().run()
    }
}
