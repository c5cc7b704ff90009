import com.sun.management.OperatingSystemMXBean;
import io.debezium.engine.ChangeEvent;
import io.debezium.engine.DebeziumEngine;
import io.debezium.engine.format.JsonByteArray;
import java.io.BufferedOutputStream;
import java.io.BufferedReader;
import java.io.IOException;
import java.io.InputStreamReader;
import java.io.OutputStream;
import java.io.PrintStream;
import java.io.UncheckedIOException;
import java.lang.management.ManagementFactory;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.List;
import java.util.Locale;
import java.util.Properties;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.TimeUnit;

/**
 * Debezium's engine in a JVM that stays warm. For each line of the input, a file of settings, a number and a file
 * between tabs, it captures so many events and writes their JSON there, a line each. It talks as worker.py does, and
 * tells the seconds before the first event, and those on the clock and of CPU from there to the last.
 */
public class Debezium {
  public static void main(String[] given) {
    PrintStream answers = System.out;
    System.setOut(System.err);
    try {
      answers.println("{\"about\": {}, \"contenders\": []}");
      BufferedReader lines = new BufferedReader(new InputStreamReader(System.in));
      for (String line; (line = lines.readLine()) != null; ) {
        String[] told = line.split("\t");
        Properties settings = new Properties();
        try (var file = Files.newBufferedReader(Path.of(told[0]))) {
          settings.load(file);
        }
        answers.println(captured(settings, Long.parseLong(told[1]), Path.of(told[2])));
      }
      System.exit(0);
    } catch (Exception problem) {
      // Its threads would go on without this one.
      problem.printStackTrace();
      System.exit(1);
    }
  }

  static String captured(Properties settings, long count, Path path) throws Exception {
    try (OutputStream file = new BufferedOutputStream(Files.newOutputStream(path), 1 << 20)) {
      Events events = new Events(file, count);
      long told = System.nanoTime();
      DebeziumEngine<ChangeEvent<byte[], byte[]>> engine =
          DebeziumEngine.create(JsonByteArray.class).using(settings).using(events::ended).notifying(events).build();
      Thread thread = new Thread(engine);
      thread.start();
      events.whole.get(30, TimeUnit.MINUTES);
      engine.close();
      thread.join();
      return String.format(
          Locale.ROOT,
          "{\"before\": %.6f, \"clock\": %.6f, \"cpu\": %.6f}",
          (events.first - told) / 1e9,
          (events.last - events.first) / 1e9,
          (events.lastCpu - events.firstCpu) / 1e9);
    }
  }

  /** Writes events. What becomes of them is told by `whole`. */
  static class Events implements DebeziumEngine.ChangeConsumer<ChangeEvent<byte[], byte[]>> {
    final CompletableFuture<Void> whole = new CompletableFuture<>();
    long first, firstCpu, last, lastCpu;
    private final OutputStream file;
    private long left;

    Events(OutputStream file, long count) {
      this.file = file;
      this.left = count;
    }

    @Override
    public void handleBatch(
        List<ChangeEvent<byte[], byte[]>> batch,
        DebeziumEngine.RecordCommitter<ChangeEvent<byte[], byte[]>> committer)
        throws InterruptedException {
      if (first == 0) {
        first = System.nanoTime();
        firstCpu = cpu();
      }
      try {
        for (ChangeEvent<byte[], byte[]> event : batch) {
          file.write(event.value());
          file.write('\n');
        }
        left -= batch.size();
        // The last one stands for all before it.
        committer.markProcessed(batch.get(batch.size() - 1));
        committer.markBatchFinished();
        if (left <= 0 && !whole.isDone()) {
          file.flush();
          last = System.nanoTime();
          lastCpu = cpu();
          whole.complete(null);
        }
      } catch (IOException problem) {
        throw new UncheckedIOException(problem);
      }
    }

    void ended(boolean success, String message, Throwable error) {
      whole.completeExceptionally(new IllegalStateException("the engine ended: " + message, error));
    }

    private static long cpu() {
      return ((OperatingSystemMXBean) ManagementFactory.getOperatingSystemMXBean()).getProcessCpuTime();
    }
  }
}
