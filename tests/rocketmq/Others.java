import static java.nio.charset.StandardCharsets.UTF_8;

import java.nio.file.Files;
import java.nio.file.Path;
import java.util.ArrayList;
import java.util.Base64;
import java.util.List;
import org.apache.rocketmq.acl.common.AclClientRPCHook;
import org.apache.rocketmq.acl.common.SessionCredentials;
import org.apache.rocketmq.client.consumer.DefaultLitePullConsumer;
import org.apache.rocketmq.client.exception.MQClientException;
import org.apache.rocketmq.client.producer.DefaultMQProducer;
import org.apache.rocketmq.client.producer.selector.SelectMessageQueueByHash;
import org.apache.rocketmq.common.compression.CompressionType;
import org.apache.rocketmq.common.message.Message;
import org.apache.rocketmq.common.message.MessageExt;
import org.apache.rocketmq.common.message.MessageQueue;

/**
 * RocketMQ's own client beside ours: sends into one topic, says where each sharding key went, and says what it receives
 * of another one.
 *
 * <p>Arguments: name server, user, password, the topic that is written, the one that is read, how many it has; and, for
 * messages of one's own, a file of them: in each line sharding key, key and body, as `text` has them.
 */
public class Others {
  public static void main(String[] given) throws Exception {
    AclClientRPCHook user = new AclClientRPCHook(new SessionCredentials(given[1], given[2]));
    try {
      DefaultMQProducer producer = new DefaultMQProducer("others", user);
      producer.setNamesrvAddr(given[0]);
      producer.start();
      if (given.length > 6) {
        sendFile(producer, given[3], Path.of(given[6]));
      } else {
        send(producer, given[3]);
      }
      producer.shutdown();
      receive(given[0], user, given[4], Integer.parseInt(given[5]));
    } catch (Exception problem) {
      // The client's threads would keep the program alive.
      problem.printStackTrace();
      System.exit(1);
    }
    System.exit(0);
  }

  static void sendFile(DefaultMQProducer producer, String topic, Path file) throws Exception {
    for (String line : Files.readAllLines(file)) {
      String[] parts = line.split(" ");
      byte[] key = bytes(parts[1]);
      Message message = new Message(topic, null, key == null ? null : new String(key, UTF_8), bytes(parts[2]));
      producer.send(message, new SelectMessageQueueByHash(), new String(bytes(parts[0]), UTF_8));
    }
  }

  static void send(DefaultMQProducer producer, String topic) throws Exception {
    Message plain = new Message(topic, "red", "one two", "grüße".getBytes(UTF_8));
    plain.putUserProperty("colour", "häßlich");
    producer.send(plain);
    for (CompressionType how : CompressionType.values()) {
      producer.setCompressType(how);
      producer.send(new Message(topic, null, how.name(), how.name().repeat(5000).getBytes()));
    }
    List<Message> batch = new ArrayList<>();
    for (int number = 0; number < 3; number++) {
      batch.add(new Message(topic, null, "batch", ("b" + number).getBytes()));
    }
    producer.send(batch);
    for (String key : List.of("a", "order-17", "größe", "\uD83D\uDE00", "polygenelubricants")) {
      Message message = new Message(topic, null, "sharded", key.getBytes(UTF_8));
      int queue = producer.send(message, new SelectMessageQueueByHash(), key).getMessageQueue().getQueueId();
      System.out.println("SHARD " + text(key) + " " + queue);
    }
  }

  static void receive(String server, AclClientRPCHook user, String topic, int count) throws Exception {
    DefaultLitePullConsumer consumer = new DefaultLitePullConsumer("others", user);
    consumer.setNamesrvAddr(server);
    consumer.setAutoCommit(false);
    consumer.start();
    var queues = consumer.fetchMessageQueues(topic);
    consumer.assign(queues);
    long deadline = System.currentTimeMillis() + 60000;
    for (var queue : queues) {
      seekToBegin(consumer, queue, deadline);
    }
    for (int got = 0; got < count && System.currentTimeMillis() < deadline; ) {
      for (MessageExt message : consumer.poll(1000)) {
        byte[] body = message.getBody() == null ? new byte[0] : message.getBody();
        System.out.println(
            String.join(
                " ",
                "GOT",
                "" + message.getQueueId(),
                "" + message.getQueueOffset(),
                text(message.getKeys()),
                text(message.getTags()),
                text(message.getUserProperty("colour")),
                message.getMsgId(),
                "." + Base64.getEncoder().encodeToString(body)));
        got++;
      }
    }
    consumer.shutdown();
  }

  /** The client gives up after some seconds, which a busy machine may need. */
  static void seekToBegin(DefaultLitePullConsumer consumer, MessageQueue queue, long deadline) throws Exception {
    while (true) {
      try {
        consumer.seekToBegin(queue);
        return;
      } catch (MQClientException problem) {
        if (System.currentTimeMillis() > deadline) {
          throw problem;
        }
      }
    }
  }

  static String text(String text) {
    return text == null ? "-" : "." + Base64.getEncoder().encodeToString(text.getBytes(UTF_8));
  }

  static byte[] bytes(String text) {
    return text.equals("-") ? null : Base64.getDecoder().decode(text.substring(1));
  }
}
