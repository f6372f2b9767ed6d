import java.io.BufferedReader;
import java.io.BufferedWriter;
import java.io.ByteArrayOutputStream;
import java.io.InputStreamReader;
import java.io.PrintStream;
import java.nio.charset.StandardCharsets;
import java.nio.file.Files;
import java.nio.file.Paths;
import java.util.ArrayList;
import java.util.Base64;
import java.util.Collection;
import java.util.Collections;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import java.util.Set;
import java.util.TreeSet;
import java.util.concurrent.ConcurrentHashMap;
import java.util.concurrent.CountDownLatch;
import java.util.concurrent.ExecutorService;
import java.util.concurrent.Executors;
import java.util.concurrent.Semaphore;
import java.util.concurrent.TimeUnit;
import org.apache.rocketmq.client.QueryResult;
import org.apache.rocketmq.client.consumer.DefaultLitePullConsumer;
import org.apache.rocketmq.client.consumer.DefaultMQPullConsumer;
import org.apache.rocketmq.client.consumer.DefaultMQPushConsumer;
import org.apache.rocketmq.client.consumer.MessageSelector;
import org.apache.rocketmq.client.consumer.PullResult;
import org.apache.rocketmq.client.consumer.listener.ConsumeConcurrentlyStatus;
import org.apache.rocketmq.client.consumer.listener.ConsumeOrderlyStatus;
import org.apache.rocketmq.client.consumer.listener.MessageListenerConcurrently;
import org.apache.rocketmq.client.consumer.listener.MessageListenerOrderly;
import org.apache.rocketmq.client.exception.MQBrokerException;
import org.apache.rocketmq.client.exception.MQClientException;
import org.apache.rocketmq.client.producer.DefaultMQProducer;
import org.apache.rocketmq.client.producer.LocalTransactionState;
import org.apache.rocketmq.client.producer.MessageQueueSelector;
import org.apache.rocketmq.client.producer.SendCallback;
import org.apache.rocketmq.client.producer.SendResult;
import org.apache.rocketmq.client.producer.TransactionListener;
import org.apache.rocketmq.client.producer.TransactionMQProducer;
import org.apache.rocketmq.client.utils.MessageUtil;
import org.apache.rocketmq.common.MQVersion;
import org.apache.rocketmq.common.consumer.ConsumeFromWhere;
import org.apache.rocketmq.common.message.Message;
import org.apache.rocketmq.common.message.MessageAccessor;
import org.apache.rocketmq.common.message.MessageExt;
import org.apache.rocketmq.common.message.MessageQueue;

/**
 * RocketMQ's own client, driven line by line.
 *
 * <p>Every line of standard input is one JSON object {"call": n, "do": command, ...}; every answer is one line
 * {"call": n, "ok": result} or {"call": n, "error": {...}}. Calls run side by side, so a waiting poll stops nobody. Clients
 * are named by "id", started by their "*.start" command and stopped by "stop" or with the JVM, which halts at end of input.
 * The commands are listed in docs/operations/interop.md. Compiles against the client library from 4.9 on.
 */
public final class Driver {
    private static final int ASYNC_WINDOW = 256;
    private static final int PULL_BATCH = 32;
    private static final int REFRESH_MS = 1_000;
    private static final long SEND_TIMEOUT_MS = 10_000;

    private final Map<String, Object> clients = new ConcurrentHashMap<>();
    private final Map<String, Received> inboxes = new ConcurrentHashMap<>();
    private final Map<String, Halves> halves = new ConcurrentHashMap<>();
    private final PrintStream out;

    private Driver(PrintStream out) {
        this.out = out;
    }

    public static void main(String[] args) throws Exception {
        PrintStream protocol = new PrintStream(System.out, false, "UTF-8");
        System.setOut(System.err);
        Driver driver = new Driver(protocol);
        ExecutorService calls = Executors.newCachedThreadPool();
        BufferedReader in = new BufferedReader(new InputStreamReader(System.in, StandardCharsets.UTF_8));
        String line;
        while ((line = in.readLine()) != null) {
            Map<String, Object> call = asMap(Json.parse(line));
            calls.execute(() -> driver.answer(call));
        }
        Runtime.getRuntime().halt(0);
    }

    private void answer(Map<String, Object> call) {
        Map<String, Object> reply = new LinkedHashMap<>();
        reply.put("call", call.get("call"));
        try {
            reply.put("ok", run(new Args(call)));
        } catch (Throwable thrown) {
            reply.put("error", describe(thrown));
        }
        String line = Json.write(reply);
        synchronized (out) {
            out.println(line);
            out.flush();
        }
    }

    private Object run(Args args) throws Throwable {
        switch (args.text("do")) {
            case "version":
                return MQVersion.getVersionDesc(MQVersion.CURRENT_VERSION);
            case "producer.start":
                return startProducer(args);
            case "producer.send":
                return send(args);
            case "producer.queues":
                return queues(((DefaultMQProducer) client(args)).fetchPublishMessageQueues(args.text("topic")));
            case "producer.createTopic":
                return createTopic(args);
            case "producer.checks":
                return halves.get(args.text("id")).checks;
            case "producer.recall":
                return recall(args);
            case "producer.request":
                return request(args);
            case "push.start":
                return startPush(args);
            case "push.startReplying":
                return startReplying(args);
            case "push.poll":
                return inboxes.get(args.text("id")).poll(args.number("min", 1), args.number("timeoutMs", 10_000));
            case "push.queues":
                return queues(((DefaultMQPushConsumer) client(args)).getDefaultMQPushConsumerImpl()
                    .getRebalanceImpl().getProcessQueueTable().keySet());
            case "push.suspend":
                ((DefaultMQPushConsumer) client(args)).suspend();
                return null;
            case "push.resume":
                ((DefaultMQPushConsumer) client(args)).resume();
                return null;
            case "push.persist":
                ((DefaultMQPushConsumer) client(args)).getDefaultMQPushConsumerImpl().persistConsumerOffset();
                return null;
            case "pull.start":
                return startPull(args);
            case "pull.offsets":
                return offsets(args);
            case "pull.one":
                return pullOne(args);
            case "pull.all":
                return pullAll(args);
            case "pull.search":
                return search(args);
            case "pull.view":
                return Records.describe(puller(args).viewMessage(args.text("topic"),
                    args.text("offsetMsgId")));
            case "pull.viewUnique":
                return Records.describe(queryUnique(args));
            case "pull.query":
                return query(args);
            case "pull.commit":
                return commit(args);
            case "pull.committed":
                return committed(args);
            case "lite.start":
                return startLite(args);
            case "lite.poll":
                return litePoll(args);
            case "lite.seek":
                ((DefaultLitePullConsumer) client(args)).seek(liteQueue(args), args.number("offset", 0));
                return null;
            case "lite.commit":
                ((DefaultLitePullConsumer) client(args)).commitSync();
                return null;
            case "lite.committed":
                return ((DefaultLitePullConsumer) client(args)).committed(liteQueue(args));
            case "lite.time":
                return ((DefaultLitePullConsumer) client(args)).offsetForTimestamp(liteQueue(args),
                    args.number("timestamp", 0));
            case "lite.queues":
                return queues(((DefaultLitePullConsumer) client(args)).assignment());
            case "mqadmin":
                return mqadmin(args);
            case "stop":
                return stop(args.text("id"));
            default:
                throw new IllegalArgumentException("no command " + args.text("do"));
        }
    }

    // Producers

    private Object startProducer(Args args) throws Exception {
        DefaultMQProducer producer;
        if (args.flag("transaction", false)) {
            Halves decisions = new Halves();
            TransactionMQProducer transactional = new TransactionMQProducer(args.text("group"));
            transactional.setTransactionListener(decisions);
            halves.put(args.text("id"), decisions);
            producer = transactional;
        } else {
            producer = new DefaultMQProducer(args.text("group"));
        }
        producer.setNamesrvAddr(args.text("namesrv"));
        producer.setPollNameServerInterval((int) args.number("pollMs", REFRESH_MS));
        producer.setHeartbeatBrokerInterval(REFRESH_MS);
        producer.setInstanceName(args.text("instance", args.text("id")));
        producer.setSendMsgTimeout((int) args.number("timeoutMs", SEND_TIMEOUT_MS));
        producer.setRetryTimesWhenSendFailed((int) args.number("retries", 2));
        producer.setRetryTimesWhenSendAsyncFailed((int) args.number("retries", 2));
        producer.setVipChannelEnabled(args.flag("vip", false));
        producer.setUseTLS(args.flag("tls", false));
        producer.setCompressMsgBodyOverHowmuch((int) args.number("compressOver", 4096));
        producer.setMaxMessageSize((int) args.number("maxMessageSize", 4 << 20));
        producer.setDefaultTopicQueueNums((int) args.number("topicQueues", 4));
        if (args.has("compressType")) {
            Class<?> type = Class.forName("org.apache.rocketmq.common.compression.CompressionType");
            DefaultMQProducer.class.getMethod("setCompressType", type)
                .invoke(producer, type.getMethod("of", String.class).invoke(null, args.text("compressType")));
        }
        if (args.has("namespace")) {
            producer.setNamespace(args.text("namespace"));
        }
        producer.start();
        clients.put(args.text("id"), producer);
        return null;
    }

    private Object send(Args args) throws Throwable {
        DefaultMQProducer producer = (DefaultMQProducer) client(args);
        String mode = args.text("mode", "sync");
        List<Message> messages = new ArrayList<>();
        List<Long> wanted = new ArrayList<>();
        for (Object item : args.list("messages")) {
            Args spec = new Args(asMap(item));
            messages.add(message(spec));
            wanted.add(spec.has("queue") ? Long.valueOf(spec.number("queue", 0)) : null);
        }
        List<Object> results = new ArrayList<>();
        if (mode.equals("batch")) {
            results.add(sendBatch(producer, messages, wanted.get(0)));
            return results;
        }
        if (mode.equals("async")) {
            return sendAsync(producer, messages, wanted);
        }
        for (int i = 0; i < messages.size(); i++) {
            Message message = messages.get(i);
            String digest = Records.md5(message.getBody());
            int length = message.getBody().length;
            try {
                if (mode.equals("oneway")) {
                    if (wanted.get(i) == null) {
                        producer.sendOneway(message);
                    } else {
                        producer.sendOneway(message, BY_QUEUE_ID, wanted.get(i));
                    }
                    results.add(result(message, null, digest, length));
                } else if (mode.equals("transaction")) {
                    String decision = args.text("decision", "commit") + "/" + args.text("onCheck", "commit");
                    SendResult sent = producer.sendMessageInTransaction(message, decision);
                    results.add(result(message, sent, digest, length));
                } else if (wanted.get(i) == null) {
                    results.add(result(message, producer.send(message), digest, length));
                } else {
                    results.add(result(message, producer.send(message, BY_QUEUE_ID, wanted.get(i)), digest, length));
                }
            } catch (Exception failed) {
                results.add(describe(failed));
            }
        }
        return results;
    }

    private Object sendBatch(DefaultMQProducer producer, Collection<Message> messages, Long queue) throws Exception {
        SendResult sent;
        if (queue == null) {
            sent = producer.send(messages);
        } else {
            MessageQueue to = null;
            for (MessageQueue candidate : producer.fetchPublishMessageQueues(messages.iterator().next().getTopic())) {
                to = candidate.getQueueId() == queue ? candidate : to;
            }
            sent = producer.send(messages, to);
        }
        Map<String, Object> row = result(messages.iterator().next(), sent, null, 0);
        List<String> digests = new ArrayList<>();
        for (Message message : messages) {
            digests.add(Records.md5(message.getBody()));
        }
        row.put("md5s", digests);
        return row;
    }

    private Object sendAsync(DefaultMQProducer producer, List<Message> messages, List<Long> wanted) throws Exception {
        Object[] results = new Object[messages.size()];
        Semaphore window = new Semaphore(ASYNC_WINDOW);
        CountDownLatch pending = new CountDownLatch(messages.size());
        for (int i = 0; i < messages.size(); i++) {
            final int place = i;
            final Message message = messages.get(i);
            final String digest = Records.md5(message.getBody());
            final int length = message.getBody().length;
            window.acquire();
            SendCallback callback = new SendCallback() {
                @Override
                public void onSuccess(SendResult sent) {
                    done(result(message, sent, digest, length));
                }

                @Override
                public void onException(Throwable failed) {
                    done(describe(failed));
                }

                private void done(Object value) {
                    if (results[place] == null) {
                        results[place] = value;
                        window.release();
                        pending.countDown();
                    }
                }
            };
            if (wanted.get(i) == null) {
                producer.send(message, callback);
            } else {
                producer.send(message, BY_QUEUE_ID, wanted.get(i), callback);
            }
        }
        if (!pending.await(120, TimeUnit.SECONDS)) {
            throw new IllegalStateException(pending.getCount() + " asynchronous sends had no answer");
        }
        List<Object> list = new ArrayList<>();
        Collections.addAll(list, results);
        return list;
    }

    private static final MessageQueueSelector BY_QUEUE_ID = new MessageQueueSelector() {
        @Override
        public MessageQueue select(List<MessageQueue> queues, Message message, Object queueId) {
            for (MessageQueue queue : queues) {
                if (queue.getQueueId() == (Long) queueId) {
                    return queue;
                }
            }
            throw new IllegalArgumentException("no queue " + queueId + " in " + queues);
        }
    };

    private static Message message(Args spec) {
        Message message = new Message(spec.text("topic"), body(spec));
        if (spec.has("tags")) {
            message.setTags(spec.text("tags"));
        }
        if (spec.has("keys")) {
            message.setKeys(spec.text("keys"));
        }
        if (spec.has("delay")) {
            message.setDelayTimeLevel((int) spec.number("delay", 0));
        }
        if (spec.has("flag")) {
            message.setFlag((int) spec.number("flag", 0));
        }
        if (!spec.flag("wait", true)) {
            message.setWaitStoreMsgOK(false);
        }
        if (spec.has("properties")) {
            for (Map.Entry<String, Object> entry : asMap(spec.values.get("properties")).entrySet()) {
                if (entry.getKey().startsWith("INNER_")) {
                    MessageAccessor.putProperty(message, entry.getKey(), String.valueOf(entry.getValue()));
                } else {
                    message.putUserProperty(entry.getKey(), String.valueOf(entry.getValue()));
                }
            }
        }
        if (spec.has("delayMs") || spec.has("deliverMs")) {
            String method = spec.has("delayMs") ? "setDelayTimeMs" : "setDeliverTimeMs";
            long value = spec.has("delayMs") ? spec.number("delayMs", 0) : spec.number("deliverMs", 0);
            try {
                Message.class.getMethod(method, long.class).invoke(message, value);
            } catch (ReflectiveOperationException missing) {
                throw new IllegalStateException("this client has no timer messages", missing);
            }
        }
        return message;
    }

    /** The body: "text", "b64", or "len" bytes made from "seed", of "kind" random or text (which compresses well). */
    private static byte[] body(Args spec) {
        if (spec.has("text")) {
            return spec.text("text").getBytes(StandardCharsets.UTF_8);
        }
        if (spec.has("b64")) {
            return Base64.getDecoder().decode(spec.text("b64"));
        }
        byte[] body = new byte[(int) spec.number("len", 0)];
        long state = spec.number("seed", 1) * 0x9E3779B97F4A7C15L + 1;
        boolean text = spec.text("kind", "random").equals("text");
        byte[] words = ("order " + spec.number("seed", 1) + " paid; ").getBytes(StandardCharsets.UTF_8);
        for (int i = 0; i < body.length; i++) {
            if (text) {
                body[i] = words[i % words.length];
            } else {
                state ^= state << 13;
                state ^= state >>> 7;
                state ^= state << 17;
                body[i] = (byte) state;
            }
        }
        return body;
    }

    private static Map<String, Object> result(Message message, SendResult sent, String digest, int length) {
        Map<String, Object> row = new LinkedHashMap<>();
        row.put("topic", message.getTopic());
        row.put("bodyMd5", digest);
        row.put("bodyLen", length);
        if (sent != null) {
            row.put("status", sent.getSendStatus().name());
            row.put("msgId", sent.getMsgId());
            row.put("offsetMsgId", sent.getOffsetMsgId());
            row.put("queueId", sent.getMessageQueue() == null ? null : sent.getMessageQueue().getQueueId());
            row.put("brokerName", sent.getMessageQueue() == null ? null : sent.getMessageQueue().getBrokerName());
            row.put("queueOffset", sent.getQueueOffset());
            row.put("transactionId", sent.getTransactionId());
            row.put("regionId", sent.getRegionId());
            try {
                row.put("recallHandle", SendResult.class.getMethod("getRecallHandle").invoke(sent));
            } catch (ReflectiveOperationException older) {
                row.put("recallHandle", null);
            }
        }
        return row;
    }

    private Object createTopic(Args args) throws Exception {
        DefaultMQProducer producer = (DefaultMQProducer) client(args);
        int queues = (int) args.number("queues", 4);
        try {
            DefaultMQProducer.class.getMethod("createTopic", String.class, String.class, int.class, Map.class)
                .invoke(producer, "TBW102", args.text("topic"), queues, new java.util.HashMap<String, String>());
        } catch (NoSuchMethodException older) {
            DefaultMQProducer.class.getMethod("createTopic", String.class, String.class, int.class)
                .invoke(producer, "TBW102", args.text("topic"), queues);
        }
        return null;
    }

    private Object request(Args args) throws Exception {
        Message asked = message(new Args(asMap(args.list("messages").get(0))));
        Message reply = ((DefaultMQProducer) client(args)).request(asked, args.number("timeoutMs", 60_000));
        return Records.describe((MessageExt) reply);
    }

    /** A push consumer that answers every message, through a producer of this driver, with "re: " and its text. */
    private Object startReplying(Args args) throws Exception {
        DefaultMQProducer producer = (DefaultMQProducer) clients.get(args.text("producer"));
        DefaultMQPushConsumer consumer = new DefaultMQPushConsumer(args.text("group"));
        consumer.setNamesrvAddr(args.text("namesrv"));
        consumer.setPollNameServerInterval(REFRESH_MS);
        consumer.setHeartbeatBrokerInterval(REFRESH_MS);
        consumer.setInstanceName(args.text("id"));
        consumer.setConsumeFromWhere(ConsumeFromWhere.CONSUME_FROM_FIRST_OFFSET);
        consumer.subscribe(args.text("topic"), "*");
        consumer.registerMessageListener((MessageListenerConcurrently) (messages, context) -> {
            try {
                for (MessageExt message : messages) {
                    byte[] body = ("re: " + new String(message.getBody(), StandardCharsets.UTF_8))
                        .getBytes(StandardCharsets.UTF_8);
                    producer.send(MessageUtil.createReplyMessage(message, body), 10_000);
                }
                return ConsumeConcurrentlyStatus.CONSUME_SUCCESS;
            } catch (Exception thrown) {
                thrown.printStackTrace();
                return ConsumeConcurrentlyStatus.RECONSUME_LATER;
            }
        });
        consumer.start();
        clients.put(args.text("id"), consumer);
        return null;
    }

    private Object recall(Args args) throws Exception {
        return DefaultMQProducer.class.getMethod("recallMessage", String.class, String.class)
            .invoke(client(args), args.text("topic"), args.text("handle"));
    }

    /**
     * Decides transactions as the sender said, "now/on check", each of commit, rollback, unknown. Another producer of the
     * group than the sender says on check what the message's property {@code verdict} says.
     */
    private static final class Halves implements TransactionListener {
        final List<Object> checks = Collections.synchronizedList(new ArrayList<>());
        private final Map<String, String> onCheck = new ConcurrentHashMap<>();

        @Override
        public LocalTransactionState executeLocalTransaction(Message message, Object argument) {
            String[] decisions = ((String) argument).split("/");
            onCheck.put(message.getTransactionId(), decisions[1]);
            return state(decisions[0]);
        }

        @Override
        public LocalTransactionState checkLocalTransaction(MessageExt message) {
            checks.add(Records.describe(message));
            String verdict = message.getUserProperty("verdict");
            return state(onCheck.getOrDefault(message.getTransactionId(), verdict == null ? "unknown" : verdict));
        }

        private static LocalTransactionState state(String decision) {
            switch (decision) {
                case "commit":
                    return LocalTransactionState.COMMIT_MESSAGE;
                case "rollback":
                    return LocalTransactionState.ROLLBACK_MESSAGE;
                default:
                    return LocalTransactionState.UNKNOW;
            }
        }
    }

    // Push consumers

    private Object startPush(Args args) throws Exception {
        String id = args.text("id");
        DefaultMQPushConsumer consumer = new DefaultMQPushConsumer(args.text("group"));
        consumer.setNamesrvAddr(args.text("namesrv"));
        consumer.setPollNameServerInterval(REFRESH_MS);
        consumer.setHeartbeatBrokerInterval(REFRESH_MS);
        consumer.setInstanceName(args.text("instance", id));
        consumer.setVipChannelEnabled(args.flag("vip", false));
        consumer.setUseTLS(args.flag("tls", false));
        setModel(consumer, args.text("model", "CLUSTERING"));
        consumer.setConsumeFromWhere(ConsumeFromWhere.valueOf(args.text("from", "CONSUME_FROM_FIRST_OFFSET")));
        if (args.has("timestamp")) {
            consumer.setConsumeTimestamp(args.text("timestamp"));
        }
        consumer.setConsumeMessageBatchMaxSize((int) args.number("batch", 1));
        consumer.setPullBatchSize((int) args.number("pullBatch", 32));
        consumer.setConsumeThreadMin((int) args.number("threads", 4));
        consumer.setConsumeThreadMax((int) args.number("threads", 4));
        if (args.has("maxReconsumeTimes")) {
            consumer.setMaxReconsumeTimes((int) args.number("maxReconsumeTimes", 16));
        }
        if (args.has("namespace")) {
            consumer.setNamespace(args.text("namespace"));
        }
        if (args.flag("pop", false)) { // clients of 4.x have no such method
            DefaultMQPushConsumer.class.getMethod("setClientRebalance", boolean.class).invoke(consumer, false);
        }
        if (args.has("invisibleMs")) {
            DefaultMQPushConsumer.class.getMethod("setPopInvisibleTime", long.class)
                .invoke(consumer, args.number("invisibleMs", 60_000));
        }
        for (Object topic : args.has("topics") ? args.list("topics") : Collections.singletonList(args.text("topic"))) {
            if (args.has("sql")) {
                consumer.subscribe((String) topic, MessageSelector.bySql(args.text("sql")));
            } else {
                consumer.subscribe((String) topic, args.text("tags", "*"));
            }
        }
        Received inbox = new Received(id, (int) args.number("failures", 0), (int) args.number("retryLevel", 0),
            args.number("holdMs", 0));
        if (args.flag("orderly", false)) {
            consumer.registerMessageListener((MessageListenerOrderly) (messages, context) -> {
                context.setSuspendCurrentQueueTimeMillis(100);
                return inbox.accept(messages) ? ConsumeOrderlyStatus.SUCCESS
                    : ConsumeOrderlyStatus.SUSPEND_CURRENT_QUEUE_A_MOMENT;
            });
        } else {
            consumer.registerMessageListener((MessageListenerConcurrently) (messages, context) -> {
                context.setDelayLevelWhenNextConsume(inbox.retryLevel);
                return inbox.accept(messages) ? ConsumeConcurrentlyStatus.CONSUME_SUCCESS
                    : ConsumeConcurrentlyStatus.RECONSUME_LATER;
            });
        }
        consumer.start();
        clients.put(id, consumer);
        inboxes.put(id, inbox);
        return null;
    }

    /** The enum lives in another package since 5.0. */
    private static void setModel(DefaultMQPushConsumer consumer, String model) throws Exception {
        for (java.lang.reflect.Method method : DefaultMQPushConsumer.class.getMethods()) {
            if (method.getName().equals("setMessageModel")) {
                Class<?> type = method.getParameterTypes()[0];
                method.invoke(consumer, type.getMethod("valueOf", String.class).invoke(null, model));
            }
        }
    }

    /** What a push consumer was given. A message whose reconsume count is below "failures" is refused. */
    private static final class Received {
        final int retryLevel;
        private final String id;
        private final int failures;
        private final long holdMs;
        private List<Object> rows = new ArrayList<>();

        Received(String id, int failures, int retryLevel, long holdMs) {
            this.id = id;
            this.failures = failures;
            this.retryLevel = retryLevel;
            this.holdMs = holdMs;
        }

        boolean accept(List<MessageExt> messages) {
            boolean good = true;
            if (holdMs > 0) {
                try {
                    Thread.sleep(holdMs);
                } catch (InterruptedException stopped) {
                    return false;
                }
            }
            synchronized (this) {
                for (MessageExt message : messages) {
                    Map<String, Object> row = Records.describe(message);
                    boolean refused = message.getReconsumeTimes() < failures;
                    row.put("consumer", id);
                    row.put("refused", refused);
                    row.put("batch", messages.size());
                    row.put("receivedAt", System.currentTimeMillis());
                    rows.add(row);
                    good &= !refused;
                }
                notifyAll();
            }
            return good;
        }

        synchronized List<Object> poll(long min, long timeoutMs) throws InterruptedException {
            long deadline = System.nanoTime() + TimeUnit.MILLISECONDS.toNanos(timeoutMs);
            while (rows.size() < min) {
                long left = TimeUnit.NANOSECONDS.toMillis(deadline - System.nanoTime());
                if (left <= 0) {
                    break;
                }
                wait(left);
            }
            List<Object> taken = rows;
            rows = new ArrayList<>();
            return taken;
        }
    }

    // Pull consumers and queries

    private Object startPull(Args args) throws Exception {
        DefaultMQPullConsumer consumer = new DefaultMQPullConsumer(args.text("group"));
        consumer.setNamesrvAddr(args.text("namesrv"));
        consumer.setPollNameServerInterval(REFRESH_MS);
        consumer.setHeartbeatBrokerInterval(REFRESH_MS);
        consumer.setInstanceName(args.text("instance", args.text("id")));
        consumer.setVipChannelEnabled(args.flag("vip", false));
        consumer.start();
        clients.put(args.text("id"), consumer);
        return null;
    }

    private DefaultMQPullConsumer puller(Args args) {
        return (DefaultMQPullConsumer) client(args);
    }

    private Object offsets(Args args) throws Exception {
        DefaultMQPullConsumer consumer = puller(args);
        List<Object> rows = new ArrayList<>();
        for (MessageQueue queue : new TreeSet<>(consumer.fetchSubscribeMessageQueues(args.text("topic")))) {
            Map<String, Object> row = new LinkedHashMap<>();
            row.put("queueId", queue.getQueueId());
            row.put("brokerName", queue.getBrokerName());
            row.put("min", consumer.minOffset(queue));
            row.put("max", consumer.maxOffset(queue));
            rows.add(row);
        }
        return rows;
    }

    /** A queue by route; one of a light topic, which has none, at the broker named. */
    private MessageQueue queue(Args args) throws Exception {
        if (args.has("broker")) {
            return new MessageQueue(args.text("topic"), args.text("broker"), (int) args.number("queue", 0));
        }
        for (MessageQueue queue : puller(args).fetchSubscribeMessageQueues(args.text("topic"))) {
            if (queue.getQueueId() == args.number("queue", 0)) {
                return queue;
            }
        }
        throw new IllegalArgumentException("no such queue");
    }

    /** One pull: its status, its offsets and its messages. */
    private Object pullOne(Args args) throws Exception {
        PullResult pulled = puller(args).pull(queue(args), args.text("tags", "*"), args.number("offset", 0),
            (int) args.number("max", PULL_BATCH));
        Map<String, Object> row = new LinkedHashMap<>();
        row.put("status", pulled.getPullStatus().name());
        row.put("next", pulled.getNextBeginOffset());
        row.put("min", pulled.getMinOffset());
        row.put("max", pulled.getMaxOffset());
        row.put("messages", describe(pulled.getMsgFoundList()));
        return row;
    }

    /** Every message of the topics, to the file "out" as JSON lines, or in the answer. */
    private Object pullAll(Args args) throws Exception {
        DefaultMQPullConsumer consumer = puller(args);
        List<Object> rows = new ArrayList<>();
        long count = 0;
        BufferedWriter file = args.has("out")
            ? Files.newBufferedWriter(Paths.get(args.text("out")), StandardCharsets.US_ASCII) : null;
        try {
            for (Object topic : args.has("topics") ? args.list("topics")
                : Collections.singletonList(args.text("topic"))) {
                for (MessageQueue queue : new TreeSet<>(consumer.fetchSubscribeMessageQueues((String) topic))) {
                    long end = consumer.maxOffset(queue);
                    long next = consumer.minOffset(queue);
                    while (next < end) {
                        PullResult pulled = consumer.pull(queue, args.text("tags", "*"), next,
                            (int) args.number("batch", PULL_BATCH));
                        for (Object row : describe(pulled.getMsgFoundList())) {
                            count++;
                            if (file == null) {
                                rows.add(row);
                            } else {
                                file.write(Json.write(row));
                                file.write('\n');
                            }
                        }
                        if (pulled.getNextBeginOffset() <= next) {
                            throw new IllegalStateException("stuck at " + next + " of " + queue + ": " + pulled);
                        }
                        next = pulled.getNextBeginOffset();
                    }
                }
            }
        } finally {
            if (file != null) {
                file.close();
            }
        }
        return file == null ? rows : (Object) count;
    }

    private Object search(Args args) throws Exception {
        Map<String, Object> row = new LinkedHashMap<>();
        for (MessageQueue queue : new TreeSet<>(puller(args).fetchSubscribeMessageQueues(args.text("topic")))) {
            row.put(String.valueOf(queue.getQueueId()),
                puller(args).searchOffset(queue, args.number("timestamp", 0)));
        }
        return row;
    }

    private Object query(Args args) throws Exception {
        QueryResult found = puller(args).queryMessage(args.text("topic"), args.text("key"),
            (int) args.number("max", 32), args.number("begin", 0), args.number("end", Long.MAX_VALUE));
        return describe(found.getMessageList());
    }

    /** By unique id through QUERY_MESSAGE alone: viewMessage() would first take the id for an address and call it. */
    private MessageExt queryUnique(Args args) throws Exception {
        return puller(args).getDefaultMQPullConsumerImpl().queryMessageByUniqKey(args.text("topic"), args.text("msgId"));
    }

    private Object commit(Args args) throws Exception {
        DefaultMQPullConsumer consumer = puller(args);
        MessageQueue queue = queue(args);
        consumer.getOffsetStore().updateConsumeOffsetToBroker(queue, args.number("offset", 0), false);
        return null;
    }

    private Object committed(Args args) throws Exception {
        return puller(args).fetchConsumeOffset(queue(args), true);
    }

    // Lite pull

    private Object startLite(Args args) throws Exception {
        DefaultLitePullConsumer consumer = new DefaultLitePullConsumer(args.text("group"));
        consumer.setNamesrvAddr(args.text("namesrv"));
        consumer.setPollNameServerInterval(REFRESH_MS);
        consumer.setHeartbeatBrokerInterval(REFRESH_MS);
        consumer.setInstanceName(args.text("instance", args.text("id")));
        consumer.setVipChannelEnabled(args.flag("vip", false));
        consumer.setAutoCommit(args.flag("autoCommit", true));
        consumer.setConsumeFromWhere(ConsumeFromWhere.valueOf(args.text("from", "CONSUME_FROM_FIRST_OFFSET")));
        boolean assign = args.flag("assign", false);
        if (!assign) {
            consumer.subscribe(args.text("topic"), args.text("tags", "*"));
        }
        consumer.start();
        if (assign) {
            consumer.assign(consumer.fetchMessageQueues(args.text("topic")));
        }
        clients.put(args.text("id"), consumer);
        return null;
    }

    private Object litePoll(Args args) {
        DefaultLitePullConsumer consumer = (DefaultLitePullConsumer) client(args);
        List<Object> rows = new ArrayList<>();
        long deadline = System.nanoTime() + TimeUnit.MILLISECONDS.toNanos(args.number("timeoutMs", 60_000));
        while (rows.size() < args.number("min", 1)) {
            long left = TimeUnit.NANOSECONDS.toMillis(deadline - System.nanoTime());
            if (left <= 0) {
                break;
            }
            rows.addAll(describe(consumer.poll(Math.min(left, 500))));
        }
        return rows;
    }

    private MessageQueue liteQueue(Args args) throws Exception {
        for (MessageQueue queue : ((DefaultLitePullConsumer) client(args)).fetchMessageQueues(args.text("topic"))) {
            if (queue.getQueueId() == args.number("queue", 0)) {
                return queue;
            }
        }
        throw new IllegalArgumentException("no such queue");
    }

    // The rest

    /** Runs an mqadmin command; what it prints comes back as text. */
    private static Object mqadmin(Args args) throws Exception {
        List<String> words = new ArrayList<>();
        for (Object word : args.list("args")) {
            words.add(String.valueOf(word));
        }
        Class<?> tool = Class.forName("org.apache.rocketmq.tools.command.MQAdminStartup");
        ByteArrayOutputStream printed = new ByteArrayOutputStream();
        synchronized (Driver.class) {
            PrintStream before = System.out;
            System.setOut(new PrintStream(printed, true, "UTF-8"));
            try {
                tool.getMethod("main0", String[].class, Class.forName("org.apache.rocketmq.remoting.RPCHook"))
                    .invoke(null, words.toArray(new String[0]), null);
            } finally {
                System.setOut(before);
            }
        }
        return printed.toString("UTF-8");
    }

    private Object stop(String id) {
        Object client = clients.remove(id);
        if (client instanceof DefaultMQProducer) {
            ((DefaultMQProducer) client).shutdown();
        } else if (client instanceof DefaultMQPushConsumer) {
            ((DefaultMQPushConsumer) client).shutdown();
        } else if (client instanceof DefaultMQPullConsumer) {
            ((DefaultMQPullConsumer) client).shutdown();
        } else if (client instanceof DefaultLitePullConsumer) {
            ((DefaultLitePullConsumer) client).shutdown();
        }
        return client != null;
    }

    private Object client(Args args) {
        Object client = clients.get(args.text("id"));
        if (client == null) {
            throw new IllegalArgumentException("no client " + args.text("id"));
        }
        return client;
    }

    private static List<Object> queues(Collection<MessageQueue> queues) {
        List<Object> rows = new ArrayList<>();
        for (MessageQueue queue : new TreeSet<>(queues)) {
            Map<String, Object> row = new LinkedHashMap<>();
            row.put("topic", queue.getTopic());
            row.put("brokerName", queue.getBrokerName());
            row.put("queueId", queue.getQueueId());
            rows.add(row);
        }
        return rows;
    }

    private static List<Object> describe(List<MessageExt> messages) {
        List<Object> rows = new ArrayList<>();
        if (messages != null) {
            for (MessageExt message : messages) {
                rows.add(Records.describe(message));
            }
        }
        return rows;
    }

    private static Map<String, Object> describe(Throwable thrown) {
        Throwable cause = thrown instanceof java.lang.reflect.InvocationTargetException ? thrown.getCause() : thrown;
        Map<String, Object> row = new LinkedHashMap<>();
        row.put("exception", cause.getClass().getSimpleName());
        row.put("message", cause.getMessage());
        if (cause instanceof MQBrokerException) {
            row.put("code", ((MQBrokerException) cause).getResponseCode());
        } else if (cause instanceof MQClientException) {
            row.put("code", ((MQClientException) cause).getResponseCode());
        }
        return row;
    }

    @SuppressWarnings("unchecked")
    private static Map<String, Object> asMap(Object value) {
        return (Map<String, Object>) value;
    }

    /** The fields of one call. */
    private static final class Args {
        final Map<String, Object> values;

        Args(Map<String, Object> values) {
            this.values = values;
        }

        boolean has(String name) {
            return values.get(name) != null;
        }

        String text(String name) {
            if (!has(name)) {
                throw new IllegalArgumentException("missing " + name);
            }
            return String.valueOf(values.get(name));
        }

        String text(String name, String otherwise) {
            return has(name) ? text(name) : otherwise;
        }

        long number(String name, long otherwise) {
            return has(name) ? ((Number) values.get(name)).longValue() : otherwise;
        }

        boolean flag(String name, boolean otherwise) {
            return has(name) ? (Boolean) values.get(name) : otherwise;
        }

        @SuppressWarnings("unchecked")
        List<Object> list(String name) {
            return (List<Object>) values.get(name);
        }
    }
}
