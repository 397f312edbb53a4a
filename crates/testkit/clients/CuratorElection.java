import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.nio.charset.StandardCharsets;
import java.util.Collection;
import java.util.concurrent.CountDownLatch;
import java.util.stream.Collectors;
import org.apache.curator.framework.CuratorFramework;
import org.apache.curator.framework.CuratorFrameworkFactory;
import org.apache.curator.framework.recipes.leader.LeaderLatch;
import org.apache.curator.framework.recipes.leader.LeaderSelector;
import org.apache.curator.framework.recipes.leader.LeaderSelectorListenerAdapter;
import org.apache.curator.framework.recipes.leader.Participant;
import org.apache.curator.retry.RetryOneTime;

/**
 * Stands for election with Curator as a program of its users would.
 *
 * <p>usage: CuratorElection selector|latch HOSTS PATH SESSION_MS VALUE<br>
 * Says `ready`, then does what each line on stdin asks: `acquire` campaigns, and says `granted` and the token when
 * it leads, which is the czxid of its node; `leader` says what the leader says of itself; `contenders` says that of
 * all, sorted, with a comma between; `release` steps down and says `released`. Ends when stdin does.
 */
class CuratorElection {
  /** Either recipe. */
  interface Candidate {
    void campaign() throws Exception;

    Participant leader() throws Exception;

    Collection<Participant> all() throws Exception;

    void stepDown() throws Exception;
  }

  static CuratorFramework client;
  static String path;
  static String value;

  public static void main(String[] args) throws Exception {
    path = args[2];
    value = args[4];
    client = CuratorFrameworkFactory.newClient(
        args[1], Integer.parseInt(args[3]), 10_000, new RetryOneTime(100));
    client.start();
    client.blockUntilConnected();
    Candidate candidate = args[0].equals("latch") ? new Latch() : new Selector();
    System.out.println("ready");
    BufferedReader in = new BufferedReader(new InputStreamReader(System.in));
    for (String line; (line = in.readLine()) != null; ) {
      switch (line) {
        case "acquire" -> candidate.campaign();
        case "leader" -> System.out.println("leader " + candidate.leader().getId());
        case "contenders" -> System.out.println("contenders " + candidate.all().stream()
            .map(Participant::getId).sorted().collect(Collectors.joining(",")));
        case "release" -> {
          candidate.stepDown();
          System.out.println("released");
        }
        default -> throw new IllegalArgumentException(line);
      }
    }
    client.close();
  }

  /** Says that it leads. Neither recipe shows its node, but what is in it is ours alone. */
  static void leads() throws Exception {
    for (String child : client.getChildren().forPath(path)) {
      String node = path + "/" + child;
      if (new String(client.getData().forPath(node), StandardCharsets.UTF_8).equals(value)) {
        System.out.println("granted " + client.checkExists().forPath(node).getCzxid());
        return;
      }
    }
    throw new IllegalStateException("it leads without a node");
  }

  static class Latch implements Candidate {
    final LeaderLatch latch = new LeaderLatch(client, path, value);

    public void campaign() throws Exception {
      latch.start();
      Thread waiting = new Thread(() -> {
        try {
          latch.await();
          leads();
        } catch (Exception error) {
          throw new IllegalStateException(error);
        }
      });
      waiting.setDaemon(true);
      waiting.start();
    }

    public Participant leader() throws Exception {
      return latch.getLeader();
    }

    public Collection<Participant> all() throws Exception {
      return latch.getParticipants();
    }

    public void stepDown() throws Exception {
      latch.close();
    }
  }

  static class Selector implements Candidate {
    final CountDownLatch enough = new CountDownLatch(1);
    final CountDownLatch over = new CountDownLatch(1);
    final LeaderSelector selector =
        new LeaderSelector(client, path, new LeaderSelectorListenerAdapter() {
          @Override
          public void takeLeadership(CuratorFramework client) throws Exception {
            leads();
            enough.await();
            over.countDown();
          }
        });

    public void campaign() {
      selector.setId(value);
      selector.start();
    }

    public Participant leader() throws Exception {
      return selector.getLeader();
    }

    public Collection<Participant> all() throws Exception {
      return selector.getParticipants();
    }

    public void stepDown() throws Exception {
      enough.countDown();
      over.await();
      // The node goes after the listener has returned.
      selector.close();
    }
  }
}
