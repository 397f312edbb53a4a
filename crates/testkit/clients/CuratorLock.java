import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.nio.file.Files;
import java.nio.file.Path;
import java.nio.file.StandardOpenOption;
import java.util.concurrent.TimeUnit;
import org.apache.curator.framework.CuratorFramework;
import org.apache.curator.framework.CuratorFrameworkFactory;
import org.apache.curator.framework.recipes.locks.InterProcessMutex;
import org.apache.curator.retry.RetryOneTime;

/**
 * Uses the lock of Curator as a program of its users would.
 *
 * <p>usage: CuratorLock HOSTS PATH SESSION_MS<br>
 * Says `ready`, then does what each line on stdin asks and answers with one line: `acquire` waits and says
 * `granted` and the token, which is the czxid of its node; `try` does not wait and may say `refused`;
 * `release` says `released`; `count DIRECTORY WHO PAUSE_MS` counts there until there is a file `enough`, and
 * says how often it did. Ends when stdin does.
 */
class CuratorLock {
  /** Shows where its node is. */
  static class Mutex extends InterProcessMutex {
    Mutex(CuratorFramework client, String path) {
      super(client, path);
    }

    String node() {
      return getLockPath();
    }
  }

  static CuratorFramework client;
  static Mutex mutex;

  public static void main(String[] args) throws Exception {
    client = CuratorFrameworkFactory.newClient(
        args[0], Integer.parseInt(args[2]), 10_000, new RetryOneTime(100));
    client.start();
    client.blockUntilConnected();
    mutex = new Mutex(client, args[1]);
    System.out.println("ready");
    BufferedReader in = new BufferedReader(new InputStreamReader(System.in));
    for (String line; (line = in.readLine()) != null; ) {
      String[] words = line.split(" ");
      switch (words[0]) {
        case "acquire" -> {
          mutex.acquire();
          System.out.println("granted " + token());
        }
        case "try" -> System.out.println(
            mutex.acquire(0, TimeUnit.MILLISECONDS) ? "granted " + token() : "refused");
        case "release" -> {
          mutex.release();
          System.out.println("released");
        }
        case "count" -> System.out.println(
            count(Path.of(words[1]), words[2], Integer.parseInt(words[3])));
        default -> throw new IllegalArgumentException(line);
      }
    }
    client.close();
  }

  static long token() throws Exception {
    return client.checkExists().forPath(mutex.node()).getCzxid();
  }

  /** Reads the counter, dawdles, writes it back; says when it begins and when it is through; rests. */
  static int count(Path directory, String who, int pauseMs) throws Exception {
    Path counter = directory.resolve("counter");
    int rounds = 0;
    for (; !Files.exists(directory.resolve("enough")); rounds++) {
      mutex.acquire();
      String grant = who + " " + token();
      record(directory, grant + " in");
      String text = Files.readString(counter).strip();
      long value = text.isEmpty() ? 0 : Long.parseLong(text);
      Thread.sleep(pauseMs);
      Files.writeString(counter, value + 1 + "\n");
      record(directory, grant + " out");
      mutex.release();
      Thread.sleep(20);
    }
    return rounds;
  }

  static void record(Path directory, String line) throws Exception {
    Files.writeString(directory.resolve("record"), line + "\n",
        StandardOpenOption.CREATE, StandardOpenOption.APPEND);
  }
}
