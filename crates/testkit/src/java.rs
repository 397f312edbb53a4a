//! The system's Java libraries: to run ZooKeeper, and to compile and run its clients.

use std::io;
use std::path::Path;

const JARS: &str = "/usr/share/java";

/// What ZooKeeper needs. The list in its jar is longer: it includes its web page and its shell, which are not used.
const ZOOKEEPER: [&str; 14] = [
    "zookeeper",
    "zookeeper-jute",
    "slf4j-api",
    "slf4j-simple",
    "snappy-java",
    "metrics-core",
    "netty-buffer",
    "netty-codec",
    "netty-common",
    "netty-handler",
    "netty-resolver",
    "netty-transport",
    "netty-transport-native-epoll",
    "netty-transport-native-unix-common",
];

const CURATOR: [&str; 4] = ["curator-client", "curator-framework", "curator-recipes", "guava"];

/// What to install for Java programs.
pub(crate) const JAVA: &str = "default-jre-headless";

/// The class path of a Java program that uses ZooKeeper, or Curator on top of it.
pub fn java_classpath() -> io::Result<String> {
    Ok(format!("{}:{}", zookeeper_classpath()?, classpath(&CURATOR, "libcurator-recipes-java")?))
}

/// The class path of the ZooKeeper server.
pub(crate) fn zookeeper_classpath() -> io::Result<String> {
    classpath(&ZOOKEEPER, "zookeeper")
}

fn classpath(names: &[&str], packages: &str) -> io::Result<String> {
    let mut paths = Vec::new();
    for name in names {
        let path = format!("{JARS}/{name}.jar");
        if !Path::new(&path).exists() {
            let message = format!("wanted {path}: install {packages} (scripts/test does)");
            return Err(io::Error::new(io::ErrorKind::NotFound, message));
        }
        paths.push(path);
    }
    Ok(paths.join(":"))
}
