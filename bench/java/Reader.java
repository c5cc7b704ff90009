import java.io.BufferedReader;
import java.io.InputStreamReader;
import org.apache.rocketmq.client.consumer.DefaultLitePullConsumer;
import org.apache.rocketmq.common.message.MessageExt;

/**
 * RocketMQ's own client, warm, which reads a topic from its beginning for each line of the input. It talks as
 * worker.py does.
 *
 * <p>Arguments: name server, topic, how many messages it has.
 */
public class Reader {
  public static void main(String[] given) throws Exception {
    int count = Integer.parseInt(given[2]);
    System.out.println(
        "{\"about\": {}, \"contenders\": [{\"name\": \"read\", \"messages\": " + count + ", \"bytes\": 0}]}");
    BufferedReader lines = new BufferedReader(new InputStreamReader(System.in));
    for (int run = 0; lines.readLine() != null; run++) {
      int got = read(given[0], "reader-" + run, given[1], count);
      System.out.println(got == count ? "{}" : "{\"problem\": \"it read " + got + " messages\"}");
    }
    System.exit(0);
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
      consumer.seekToBegin(queue);
    }
    int got = 0;
    long bytes = 0;
    // It gives up when nothing comes for so long.
    long heard = System.nanoTime();
    while (got < count && System.nanoTime() - heard < 30_000_000_000L) {
      for (MessageExt message : consumer.poll(100)) {
        bytes += message.getBody().length;
        got++;
        heard = System.nanoTime();
      }
    }
    consumer.shutdown();
    return bytes > 0 ? got : 0;
  }
}
