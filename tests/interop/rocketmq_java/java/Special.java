import java.io.File;
import java.io.PrintStream;
import java.net.InetAddress;
import java.net.InetSocketAddress;
import java.nio.charset.StandardCharsets;
import java.util.Arrays;
import java.util.Collections;
import java.util.HashMap;
import java.util.LinkedHashMap;
import java.util.Map;
import java.util.concurrent.ConcurrentHashMap;
import java.util.concurrent.ConcurrentMap;
import java.util.concurrent.TimeUnit;
import org.apache.rocketmq.common.BrokerConfig;
import org.apache.rocketmq.common.TopicConfig;
import org.apache.rocketmq.common.message.Message;
import org.apache.rocketmq.common.message.MessageAccessor;
import org.apache.rocketmq.common.message.MessageConst;
import org.apache.rocketmq.common.message.MessageDecoder;
import org.apache.rocketmq.common.message.MessageExt;
import org.apache.rocketmq.common.message.MessageExtBatch;
import org.apache.rocketmq.common.message.MessageExtBrokerInner;
import org.apache.rocketmq.common.sysflag.MessageSysFlag;
import org.apache.rocketmq.store.DefaultMessageStore;
import org.apache.rocketmq.store.PutMessageResult;
import org.apache.rocketmq.store.config.MessageStoreConfig;
import org.apache.rocketmq.store.stats.BrokerStatsManager;

/**
 * Records that no client can send, put through RocketMQ's own store: {@code Special DIR}.
 *
 * <p>IPv6 hosts in all four combinations, topics over 127 bytes (version 2 records), empty bodies, no properties at all,
 * transaction bits as old brokers wrote them, a multi-tags topic, a record CRC in the properties, an inner batch in a
 * batch consume queue, one message dispatched to several light queues.
 */
public final class Special {
    private static final String LONG_TOPIC = "%RETRY%" + String.join("", Collections.nCopies(124, "g"));

    private static final InetSocketAddress V4 = host("10.1.2.3", 50_001);
    private static final InetSocketAddress V6 = host("2001:db8::1:2", 50_002);
    private static final InetSocketAddress STORE_V4 = host("127.0.0.1", 10_911);
    private static final InetSocketAddress STORE_V6 = host("2001:db8::a", 10_911);

    private static PrintStream out;
    private static DefaultMessageStore store;

    public static void main(String[] args) {
        out = System.out;
        System.setOut(System.err);
        int status = 1;
        try {
            write(args[0]);
            status = 0;
        } catch (Throwable thrown) {
            thrown.printStackTrace();
        }
        out.flush();
        Runtime.getRuntime().halt(status);
    }

    private static void write(String directory) throws Exception {
        MessageStoreConfig config = new MessageStoreConfig();
        config.setStorePathRootDir(directory);
        config.setStorePathCommitLog(directory + File.separator + "commitlog");
        config.setMappedFileSizeCommitLog(8 << 10);
        config.setMappedFileSizeConsumeQueue(200);
        config.setMapperFileSizeBatchConsumeQueue(46 * 10);
        config.setMaxHashSlotNum(16);
        config.setMaxIndexNum(64);
        config.setTimerWheelEnable(false);
        config.setEnableLmq(true);
        config.setEnableMultiDispatch(true);
        config.setHaListenPort(0);
        ConcurrentMap<String, TopicConfig> topics = new ConcurrentHashMap<>();
        TopicConfig batches = new TopicConfig("InnerBatches", 1, 1);
        Map<String, String> attributes = new HashMap<>();
        attributes.put("queue.type", "BatchCQ");
        batches.setAttributes(attributes);
        topics.put("InnerBatches", batches);
        open(config, topics);
        for (InetSocketAddress born : Arrays.asList(V4, V6)) {
            for (InetSocketAddress storeHost : Arrays.asList(STORE_V4, STORE_V6)) {
                put(message("Hosts", "from " + born.getPort(), "hosts"), born, storeHost);
            }
        }
        put(message(LONG_TOPIC, "version 2", "long"), V4, STORE_V4);
        put(message(LONG_TOPIC, "version 2 over IPv6", "long"), V6, STORE_V6);
        put(message("Empty", "", "empty"), V4, STORE_V4);
        put(message("Empty", "no properties", null), V4, STORE_V4);
        for (int bits : new int[] {MessageSysFlag.TRANSACTION_PREPARED_TYPE, MessageSysFlag.TRANSACTION_COMMIT_TYPE,
            MessageSysFlag.TRANSACTION_ROLLBACK_TYPE}) {
            MessageExtBrokerInner old = message("OldTransactions", "bits " + bits, "transaction-" + bits);
            old.setSysFlag(bits);
            old.setPreparedTransactionOffset(bits == MessageSysFlag.TRANSACTION_PREPARED_TYPE ? 0 : 4711);
            put(old, V4, STORE_V4);
        }
        MessageExtBrokerInner tags = message("MultiTags", "multi", "multi-1 multi-2  multi-4");
        tags.setTags("red blue");
        tags.setSysFlag(MessageSysFlag.MULTI_TAGS_FLAG);
        tags.setFlag(Integer.MIN_VALUE);
        tags.setReconsumeTimes(7);
        put(tags, V4, STORE_V4);
        MessageExtBrokerInner light = message("Light", "three queues", "light");
        MessageAccessor.putProperty(light, "INNER_MULTI_DISPATCH", "%LMQ%one,%LMQ%two");
        put(light, V4, STORE_V4);
        for (int i = 0; i < 25; i++) {
            put(message("Filler", "filler " + i + " " + String.join("", Collections.nCopies(300, "x")), "f-" + i), V4, STORE_V4);
        }
        innerBatch(3);
        innerBatch(5);
        close();
        config.setEnabledAppendPropCRC(true);
        open(config, topics);
        for (int i = 0; i < 4; i++) {
            put(message("Crc", "with a record CRC " + i, "crc-" + i), i % 2 == 0 ? V4 : V6, STORE_V4);
        }
        close();
    }

    private static void open(MessageStoreConfig config, ConcurrentMap<String, TopicConfig> topics) throws Exception {
        BrokerConfig broker = new BrokerConfig();
        broker.setBrokerName("broker-a");
        store = new DefaultMessageStore(config, new BrokerStatsManager("DefaultCluster", false),
            (topic, queue, offset, tags, time, bitmap, properties) -> { }, broker, topics);
        if (!store.load()) {
            throw new IllegalStateException("the store does not load");
        }
        store.start();
    }

    private static void close() throws InterruptedException {
        long deadline = System.nanoTime() + TimeUnit.SECONDS.toNanos(20);
        while (store.dispatchBehindBytes() > 0 && System.nanoTime() < deadline) {
            Thread.sleep(10);
        }
        store.shutdown();
    }

    private static MessageExtBrokerInner message(String topic, String body, String keys) {
        MessageExtBrokerInner message = new MessageExtBrokerInner();
        message.setTopic(topic);
        message.setBody(body.getBytes(StandardCharsets.UTF_8));
        message.setQueueId(0);
        message.setBornTimestamp(1_700_000_000_000L);
        MessageAccessor.setProperties(message, new HashMap<String, String>());
        if (keys != null) {
            message.setKeys(keys);
            message.setTags("Special");
        }
        return message;
    }

    private static void put(MessageExtBrokerInner message, InetSocketAddress born, InetSocketAddress storeHost) {
        message.setBornHost(born);
        message.setStoreHost(storeHost);
        if (born.getAddress().getAddress().length == 16) {
            message.setBornHostV6Flag();
        }
        if (storeHost.getAddress().getAddress().length == 16) {
            message.setStoreHostAddressV6Flag();
        }
        message.setPropertiesString(MessageDecoder.messageProperties2String(message.getProperties()));
        report(message, store.putMessage(message));
    }

    private static void innerBatch(int count) {
        MessageExtBatch batch = new MessageExtBatch();
        java.io.ByteArrayOutputStream body = new java.io.ByteArrayOutputStream();
        for (int i = 0; i < count; i++) {
            Message inner = new Message("InnerBatches", "TagI", "inner-" + i, ("inner " + i).getBytes(StandardCharsets.UTF_8));
            byte[] bytes = MessageDecoder.encodeMessage(inner);
            body.write(bytes, 0, bytes.length);
        }
        batch.setTopic("InnerBatches");
        batch.setQueueId(0);
        batch.setBody(body.toByteArray());
        batch.setBornTimestamp(1_700_000_000_000L);
        batch.setBornHost(V4);
        batch.setStoreHost(STORE_V4);
        batch.setSysFlag(MessageSysFlag.INNER_BATCH_FLAG | MessageSysFlag.NEED_UNWRAP_FLAG);
        batch.setInnerBatch(true);
        MessageAccessor.putProperty(batch, MessageConst.PROPERTY_UNIQ_CLIENT_MESSAGE_ID_KEYIDX, "7F00000100" + count);
        MessageAccessor.putProperty(batch, MessageConst.PROPERTY_INNER_NUM, String.valueOf(count));
        batch.setPropertiesString(MessageDecoder.messageProperties2String(batch.getProperties()));
        report(batch, store.putMessage(batch));
    }

    private static void report(MessageExt message, PutMessageResult result) {
        Map<String, Object> row = new LinkedHashMap<>();
        row.put("topic", message.getTopic());
        row.put("status", result.getPutMessageStatus().name());
        if (result.isOk()) {
            row.put("offsetMsgId", result.getAppendMessageResult().getMsgId());
            row.put("queueOffset", result.getAppendMessageResult().getLogicsOffset());
            row.put("storeSize", result.getAppendMessageResult().getWroteBytes());
        }
        out.println(Json.write(row));
    }

    private static InetSocketAddress host(String address, int port) {
        try {
            return new InetSocketAddress(InetAddress.getByName(address), port);
        } catch (java.net.UnknownHostException impossible) {
            throw new IllegalStateException(impossible);
        }
    }
}
