//! How people see this process.

use fencepost_core::Label;

use crate::error::Result;

/// `host:pid`.
pub fn default_label() -> Result<Label> {
    #[cfg(unix)]
    let host = rustix::system::uname().nodename().to_string_lossy().into_owned();
    #[cfg(not(unix))]
    let host = std::env::var("COMPUTERNAME").unwrap_or_else(|_| "host".to_owned());
    let host: String = host.chars().filter(|c| !c.is_control()).take(64).collect();
    Ok(Label::new(&format!("{host}:{}", std::process::id()))?)
}
