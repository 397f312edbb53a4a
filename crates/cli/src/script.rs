//! `acquire`, `renew`, `release`: a lock in the hands of a script.

use fencepost::{OwnerId, Ttl};
use serde_json::json;

use crate::args::{Acquire, Release, Renew};
use crate::exit::{self, Failure};
use crate::out;
use crate::signals::Signals;
use crate::store::{self, Target};
use crate::take::{self, Wish};

/// Takes a lock that outlives this process and prints what the script needs to keep it.
pub(crate) async fn acquire(args: &Acquire, at: &Target, json: bool) -> Result<u8, Failure> {
    let (name, taking) = (&args.name, &args.taking);
    if taking.limit.conflict_exit_code == Some(exit::OK) {
        return Err(Failure::usage(
            "-E 0 would let the script go on without the lock: give another code, or use `fencepost run`",
        ));
    }
    let mut signals = Signals::listen()?;
    let fp = at.open_shared().await?;
    let wish = Wish { at, name, taking, max_hold: None, lease_only: true };
    let guard = match take::take(&fp, &wish, &mut signals).await {
        Ok(guard) => guard,
        Err(failure) => {
            store::close(&fp).await;
            return Err(failure);
        }
    };
    let (name, token, ttl) = (guard.name().clone(), guard.token(), guard.ttl());
    let owner = guard.owner().reveal();
    let url = at.for_the_command();
    let text = if json {
        let grant = json!({
            "name": name.as_str(),
            "owner": owner,
            "token": token.get(),
            "ttl_ms": ttl.as_millis(),
            "url": url,
        });
        format!("{grant}\n")
    } else {
        format!(
            "export FENCEPOST_NAME={} FENCEPOST_OWNER={owner} FENCEPOST_TOKEN={token} \
             FENCEPOST_TTL_MS={} FENCEPOST_URL={}\n",
            quoted(name.as_str()),
            ttl.as_millis(),
            quoted(&url)
        )
    };
    match out::print(&text) {
        Ok(out::Reader::Listens) => {
            // From here on the lock is the script's.
            let _ = guard.detach();
            Ok(exit::OK)
        }
        // Nobody has the owner, so nobody could release it.
        unheard => {
            let _ = guard.release().await;
            unheard?;
            Err(Failure::internal("nobody reads the owner on stdout, so the lock was released"))
        }
    }
}

/// `eval "$(fencepost acquire ...)"` succeeds if nothing is printed, and the script would go on without the
/// lock. So a failure is something to evaluate, too.
pub(crate) fn fail_in_eval(code: u8) {
    // If nobody reads it, there is nobody to stop.
    let _ = out::print(&format!("(exit {code})\n"));
}

/// Renews by owner.
pub(crate) async fn renew(args: &Renew, at: &Target, json: bool) -> Result<u8, Failure> {
    let owner = owner(args.owner.as_deref())?;
    let ttl = args.ttl.map(Ttl::new).transpose().map_err(fencepost::Error::from)?;
    let renewed = at.open_shared().await?.renew(&args.name, owner, ttl).await?.value;
    if json {
        let ttl_ms = renewed.ttl.as_millis();
        out::json(&json!({ "name": args.name, "token": renewed.token.get(), "ttl_ms": ttl_ms }))?;
    }
    Ok(exit::OK)
}

/// Releases by owner.
pub(crate) async fn release(args: &Release, at: &Target, json: bool) -> Result<u8, Failure> {
    let owner = owner(args.owner.as_deref())?;
    at.open_shared().await?.release(&args.name, owner).await?;
    if json {
        out::json(&json!({ "name": args.name, "released": true }))?;
    }
    Ok(exit::OK)
}

fn owner(given: Option<&str>) -> Result<OwnerId, Failure> {
    let from_env = || std::env::var("FENCEPOST_OWNER").ok().filter(|owner| !owner.is_empty());
    let owner = given.map(str::to_owned).or_else(from_env).ok_or_else(|| {
        Failure::usage(
            "no owner is given: set FENCEPOST_OWNER as `fencepost acquire` printed it, or use --owner",
        )
    })?;
    Ok(owner.parse().map_err(fencepost::Error::from)?)
}

/// One word for a POSIX shell, whatever is in it.
pub(crate) fn quoted(text: &str) -> String {
    let plain = |c: char| c.is_ascii_alphanumeric() || "_-./:@%+=,".contains(c);
    if !text.is_empty() && text.chars().all(plain) {
        text.to_owned()
    } else {
        format!("'{}'", text.replace('\'', r"'\''"))
    }
}

#[cfg(test)]
mod tests {
    use super::quoted;

    #[test]
    fn a_name_can_not_break_out_of_its_quotes() {
        assert_eq!(quoted("invoice/42"), "invoice/42");
        assert_eq!(quoted("a b"), "'a b'");
        assert_eq!(quoted("$(rm -rf x)"), "'$(rm -rf x)'");
        assert_eq!(quoted("it's"), r"'it'\''s'");
    }
}
