import java.security.MessageDigest;
import java.util.Base64;
import java.util.LinkedHashMap;
import java.util.Map;
import java.util.TreeMap;
import org.apache.rocketmq.common.message.MessageClientExt;
import org.apache.rocketmq.common.message.MessageExt;

/** A received or stored message as one flat JSON object. */
final class Records {
    private static final int BODY_SHOWN_MAX = 64;

    private Records() {
    }

    static Map<String, Object> describe(MessageExt message) {
        Map<String, Object> row = new LinkedHashMap<>();
        byte[] body = message.getBody();
        row.put("topic", message.getTopic());
        row.put("queueId", message.getQueueId());
        row.put("queueOffset", message.getQueueOffset());
        row.put("commitLogOffset", message.getCommitLogOffset());
        row.put("storeSize", message.getStoreSize());
        row.put("tags", message.getTags());
        row.put("keys", message.getKeys());
        row.put("uniqId", message.getProperty("UNIQ_KEY"));
        row.put("msgId", message.getMsgId());
        row.put("offsetMsgId", offsetMsgId(message));
        row.put("properties", new TreeMap<>(message.getProperties()));
        row.put("bodyLen", body == null ? 0 : body.length);
        row.put("bodyMd5", md5(body));
        if (body != null && body.length <= BODY_SHOWN_MAX) {
            row.put("bodyB64", Base64.getEncoder().encodeToString(body));
        }
        row.put("bodyCRC", message.getBodyCRC());
        row.put("flag", message.getFlag());
        row.put("sysFlag", message.getSysFlag());
        row.put("bornTimestamp", message.getBornTimestamp());
        row.put("bornHost", message.getBornHostString());
        row.put("storeTimestamp", message.getStoreTimestamp());
        row.put("storeHost", String.valueOf(message.getStoreHost()).replaceFirst("^.*/", ""));
        row.put("reconsumeTimes", message.getReconsumeTimes());
        row.put("preparedTransactionOffset", message.getPreparedTransactionOffset());
        return row;
    }

    static String offsetMsgId(MessageExt message) {
        return message instanceof MessageClientExt ? ((MessageClientExt) message).getOffsetMsgId() : message.getMsgId();
    }

    static String md5(byte[] body) {
        try {
            byte[] digest = MessageDigest.getInstance("MD5").digest(body == null ? new byte[0] : body);
            StringBuilder text = new StringBuilder();
            for (byte b : digest) {
                text.append(String.format("%02x", b));
            }
            return text.toString();
        } catch (java.security.NoSuchAlgorithmException impossible) {
            throw new IllegalStateException(impossible);
        }
    }
}
