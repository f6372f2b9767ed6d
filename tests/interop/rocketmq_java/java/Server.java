import java.io.BufferedReader;
import java.io.File;
import java.io.InputStreamReader;
import java.io.PrintStream;
import java.io.RandomAccessFile;
import java.nio.ByteBuffer;
import java.nio.charset.StandardCharsets;
import java.util.Arrays;
import java.util.LinkedHashMap;
import java.util.Map;
import java.util.concurrent.TimeUnit;
import org.apache.rocketmq.broker.BrokerController;
import org.apache.rocketmq.broker.BrokerStartup;
import org.apache.rocketmq.common.MQVersion;
import org.apache.rocketmq.common.message.MessageDecoder;
import org.apache.rocketmq.common.message.MessageExt;
import org.apache.rocketmq.namesrv.NamesrvController;
import org.apache.rocketmq.namesrv.NamesrvStartup;

/**
 * RocketMQ's name server and broker in one JVM, under the control of the process that started it.
 *
 * <pre>
 *   Server serve NAMESRV_CONF|- BROKER_CONF|-   start, print {"ready":true}, stop in order on "stop", die on end of input
 *   Server dump COMMITLOG_DIR                   print every record of a closed commit log, as RocketMQ's decoder reads it
 * </pre>
 *
 * End of standard input means that the parent is gone: the JVM halts at once, so no broker outlives its test.
 */
public final class Server {
    private static final int BLANK = -875286124;
    private static final int MESSAGE_V1 = -626843481;
    private static final int MESSAGE_V2 = -626843477;
    private static PrintStream out;

    public static void main(String[] args) throws Exception {
        out = System.out;
        System.setOut(System.err);
        if (args[0].equals("dump")) {
            dump(new File(args[1]));
            out.flush();
            Runtime.getRuntime().halt(0);
        }
        serve(args[1], args[2]);
    }

    private static void serve(String namesrvConf, String brokerConf) throws Exception {
        NamesrvController namesrv = null;
        BrokerController broker = null;
        if (!namesrvConf.equals("-")) {
            namesrv = NamesrvStartup.main0(new String[] {"-c", namesrvConf});
        }
        if (!brokerConf.equals("-")) {
            broker = BrokerStartup.createBrokerController(new String[] {"-c", brokerConf});
            BrokerStartup.start(broker);
            register(broker);
        }
        Map<String, Object> ready = new LinkedHashMap<>();
        ready.put("ready", true);
        ready.put("version", MQVersion.getVersionDesc(MQVersion.CURRENT_VERSION));
        say(ready);
        BufferedReader in = new BufferedReader(new InputStreamReader(System.in, StandardCharsets.UTF_8));
        String line = in.readLine();
        if (line == null) {
            Runtime.getRuntime().halt(9);
        }
        if (broker != null) {
            broker.shutdown();
        }
        if (namesrv != null) {
            namesrv.shutdown();
        }
        Map<String, Object> stopped = new LinkedHashMap<>();
        stopped.put("stopped", true);
        say(stopped);
        Runtime.getRuntime().halt(0);
    }

    /** The first registration is skipped while the connection to the name server is being made, the next comes in 10 s. */
    private static void register(BrokerController broker) throws Exception {
        long deadline = System.nanoTime() + TimeUnit.SECONDS.toNanos(30);
        while (true) {
            broker.registerBrokerAll(true, false, true);
            try {
                broker.getBrokerOuterAPI().getTopicRouteInfoFromNameServer(
                    broker.getBrokerConfig().getBrokerName(), 3000);
                return;
            } catch (Exception notYet) {
                if (System.nanoTime() > deadline) {
                    throw notYet;
                }
                Thread.sleep(50);
            }
        }
    }

    private static void dump(File directory) throws Exception {
        File[] files = directory.listFiles();
        Arrays.sort(files);
        for (File file : files) {
            byte[] bytes = new byte[(int) file.length()];
            try (RandomAccessFile from = new RandomAccessFile(file, "r")) {
                from.readFully(bytes);
            }
            ByteBuffer buffer = ByteBuffer.wrap(bytes);
            while (buffer.remaining() > 8) {
                int start = buffer.position();
                int size = buffer.getInt(start);
                int magic = buffer.getInt(start + 4);
                if (magic != MESSAGE_V1 && magic != MESSAGE_V2 || size <= 0 || size > buffer.remaining()) {
                    Map<String, Object> end = new LinkedHashMap<>();
                    end.put("file", file.getName());
                    end.put("end", start);
                    end.put("blank", magic == BLANK ? size : 0);
                    say(end);
                    break;
                }
                ByteBuffer record = ByteBuffer.wrap(bytes, start, size).slice();
                MessageExt message = MessageDecoder.decode(record, true, false);
                if (message == null) {
                    throw new IllegalStateException("no record at " + start + " in " + file);
                }
                Map<String, Object> row = Records.describe(message);
                row.put("recordVersion", magic == MESSAGE_V1 ? 1 : 2);
                say(row);
                buffer.position(start + size);
            }
        }
    }

    private static void say(Map<String, Object> row) {
        out.println(Json.write(row));
        out.flush();
    }
}
