//! nginx between the gateway and a service. It gives up on a request while the service is still working on it.

use fencepost_testkit::Nginx;
use fencepost_testkit::ports::on_free_port;

use super::Service;

/// How long nginx waits for the service before it answers 504. A service that does respond takes much less.
const GIVES_UP: &str = "2s";

/// Starts one in front of the service.
pub(crate) fn in_front_of(service: &Service) -> Nginx {
    let pass = format!(
        "location / {{ proxy_pass http://{}; proxy_http_version 1.1; \
         proxy_read_timeout {GIVES_UP}; client_max_body_size 64m; }}",
        service.address()
    );
    on_free_port(|port| Nginx::start(port, "", &pass)).unwrap()
}
