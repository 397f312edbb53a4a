import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.util.ArrayList;
import java.util.List;
import java.util.concurrent.CountDownLatch;
import org.apache.curator.framework.CuratorFramework;
import org.apache.curator.framework.CuratorFrameworkFactory;
import org.apache.curator.framework.recipes.locks.InterProcessMutex;
import org.apache.curator.retry.RetryOneTime;

/**
 * Curator clients that acquire one lock repeatedly, hold it for 5 ms, and print the times.
 *
 * <p>usage: CuratorWaiters HOST PATH CLIENTS ROUNDS<br>
 * Each has a session and a thread. Prints `ready`, waits for a line, and at the end prints for each grant when it was
 * made (its order), requested, made, and released, in nanoseconds.
 */
class CuratorWaiters {
  public static void main(String[] args) throws Exception {
    int clients = Integer.parseInt(args[2]);
    int rounds = Integer.parseInt(args[3]);
    CountDownLatch go = new CountDownLatch(1);
    List<String> lines = new ArrayList<>();
    List<Thread> threads = new ArrayList<>();
    List<CuratorFramework> frameworks = new ArrayList<>();
    for (int number = 0; number < clients; number++) {
      CuratorFramework client =
          CuratorFrameworkFactory.newClient(args[0], 30_000, 10_000, new RetryOneTime(100));
      client.start();
      client.blockUntilConnected();
      frameworks.add(client);
      InterProcessMutex mutex = new InterProcessMutex(client, args[1]);
      Thread thread = new Thread(() -> take(mutex, go, rounds, lines));
      thread.start();
      threads.add(thread);
    }
    System.out.println("ready");
    new BufferedReader(new InputStreamReader(System.in)).readLine();
    go.countDown();
    for (Thread thread : threads) {
      thread.join();
    }
    lines.forEach(System.out::println);
    for (CuratorFramework client : frameworks) {
      client.close();
    }
  }

  static void take(InterProcessMutex mutex, CountDownLatch go, int rounds, List<String> lines) {
    try {
      go.await();
      for (int round = 0; round < rounds; round++) {
        long asked = System.nanoTime();
        mutex.acquire();
        long granted = System.nanoTime();
        Thread.sleep(5);
        long released = System.nanoTime();
        mutex.release();
        synchronized (lines) {
          lines.add(granted + " " + asked + " " + granted + " " + released);
        }
      }
    } catch (Exception error) {
      throw new IllegalStateException(error);
    }
  }
}
