import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.util.BitSet;
import java.util.HashMap;
import java.util.Map;
import org.apache.rocketmq.client.consumer.DefaultLitePullConsumer;
import org.apache.rocketmq.client.exception.MQClientException;
import org.apache.rocketmq.common.message.MessageExt;
import org.apache.rocketmq.common.message.MessageQueue;

/**
 * RocketMQ's own client, warm, which reads a topic from its beginning for each line of the input. It talks as
 * worker.py does.
 *
 * <p>Arguments: name server, topic, how many messages it has.
 */
public class Reader {
  public static void main(String[] given) {
    try {
      answer(given);
      System.exit(0);
    } catch (Exception problem) {
      // Its threads would go on without this one.
      problem.printStackTrace();
      System.exit(1);
    }
  }

  static void answer(String[] given) throws Exception {
    int count = Integer.parseInt(given[2]);
    System.out.println(
        "{\"about\": {}, \"contenders\": [{\"name\": \"read\", \"messages\": " + count + ", \"bytes\": 0}]}");
    BufferedReader lines = new BufferedReader(new InputStreamReader(System.in));
    for (int run = 0; lines.readLine() != null; run++) {
      int got = read(given[0], "reader-" + run, given[1], count);
      System.out.println(got == count ? "{}" : "{\"problem\": \"it read " + got + " messages\"}");
    }
  }

  static int read(String server, String group, String topic, int count) throws Exception {
    DefaultLitePullConsumer consumer = new DefaultLitePullConsumer(group);
    consumer.setNamesrvAddr(server);
    consumer.setAutoCommit(false);
    // As many as a broker gives at once.
    consumer.setPullBatchSize(32);
    consumer.start();
    var queues = consumer.fetchMessageQueues(topic);
    consumer.assign(queues);
    for (var queue : queues) {
      seekToBegin(consumer, queue);
    }
    int got = 0;
    long bytes = 0;
    Map<Integer, BitSet> seen = new HashMap<>();
    // It gives up when nothing comes for so long.
    long heard = System.nanoTime();
    while (got < count && System.nanoTime() - heard < 30_000_000_000L) {
      for (MessageExt message : consumer.poll(100)) {
        bytes += message.getBody().length;
        // It may have begun to read before it was told where, and gives some twice then.
        BitSet of = seen.computeIfAbsent(message.getQueueId(), any -> new BitSet());
        if (!of.get((int) message.getQueueOffset())) got++;
        of.set((int) message.getQueueOffset());
        heard = System.nanoTime();
      }
    }
    consumer.shutdown();
    return bytes > 0 ? got : 0;
  }

  /** Now and then the client does not get its question to the broker, and gives up at once. */
  static void seekToBegin(DefaultLitePullConsumer consumer, MessageQueue queue) throws MQClientException {
    for (int again = 2; ; again--) {
      try {
        consumer.seekToBegin(queue);
        return;
      } catch (MQClientException problem) {
        if (again == 0) throw problem;
      }
    }
  }
}
