//! `acquire`, `renew`, `release`: a lock that a script holds.

use fencepost::{OwnerId, Ttl};
use serde_json::json;

use crate::acquire::{self, AcquireOptions};
use crate::args::{Acquire, OwnerArgs, Renew};
use crate::exit::{self, Failure};
use crate::out;
use crate::signals::Signals;
use crate::store::{self, Target, env_var};

/// Acquires a lock that outlives this process, and prints what the script needs to renew and release it.
pub(crate) async fn acquire(args: &Acquire, at: &Target, json: bool) -> Result<u8, Failure> {
    let (name, args) = (&args.name, &args.lock);
    if args.limit.conflict_exit_code == Some(exit::OK) {
        return Err(Failure::usage(
            "-E 0 would let the script continue without the lock: give another code, or use `fencepost run`",
        ));
    }
    let mut signals = Signals::listen()?;
    let fp = at.open_shared().await?;
    let options = AcquireOptions { at, name, args, max_hold: None, lease_only: true };
    let guard = match acquire::acquire(&fp, &options, &mut signals).await {
        Ok(guard) => guard,
        Err(failure) => {
            store::close(&fp).await;
            return Err(failure);
        }
    };
    // The token is the script's to pass to a fence.
    let (fencing, ttl) = (guard.fencing(), guard.ttl());
    let (name, token) = (fencing.name(), fencing.token());
    let owner = guard.owner().reveal();
    let url = at.url_for_child();
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
        Ok(out::Reader::Present) => {
            // From now on the script holds the lock.
            let _ = guard.detach();
            Ok(exit::OK)
        }
        // Nobody got the owner, so nobody else could release the lock.
        not_printed => {
            let _ = guard.release().await;
            not_printed?;
            Err(Failure::internal(
                "stdout is closed, so nobody got the owner: the lock was released",
            ))
        }
    }
}

/// `eval "$(fencepost acquire ...)"` succeeds if nothing is printed, and the script would continue without the lock. So
/// a failure prints a command that fails.
pub(crate) fn fail_in_eval(code: u8) {
    let _ = out::print(&format!("(exit {code})\n"));
}

pub(crate) async fn renew(args: &Renew, at: &Target, json: bool) -> Result<u8, Failure> {
    let OwnerArgs { name, owner } = &args.grant;
    let owner = owner_id(owner.as_ref())?;
    let ttl = args.ttl.map(Ttl::new).transpose().map_err(fencepost::Error::from)?;
    let renewed = at.open_shared().await?.renew(name, owner, ttl).await?.value;
    let ttl_ms = renewed.ttl.as_millis();
    let value = json!({ "name": name, "token": renewed.token.get(), "ttl_ms": ttl_ms });
    out::result(json, &value, "")
}

pub(crate) async fn release(args: &OwnerArgs, at: &Target, json: bool) -> Result<u8, Failure> {
    let owner = owner_id(args.owner.as_ref())?;
    at.open_shared().await?.release(&args.name, owner).await?;
    out::result(json, &json!({ "name": args.name, "released": true }), "")
}

fn owner_id(given: Option<&String>) -> Result<OwnerId, Failure> {
    let owner = given.cloned().or_else(|| env_var("FENCEPOST_OWNER")).ok_or_else(|| {
        Failure::usage(
            "no owner is given: set FENCEPOST_OWNER as `fencepost acquire` printed it, or use --owner",
        )
    })?;
    Ok(owner.parse().map_err(fencepost::Error::from)?)
}

/// Quotes text as one word for a POSIX shell.
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
    fn name_is_quoted_for_the_shell() {
        assert_eq!(quoted("invoice/42"), "invoice/42");
        assert_eq!(quoted("a b"), "'a b'");
        assert_eq!(quoted("$(rm -rf x)"), "'$(rm -rf x)'");
        assert_eq!(quoted("it's"), r"'it'\''s'");
    }
}
