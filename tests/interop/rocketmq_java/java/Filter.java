import java.io.PrintStream;
import java.nio.charset.StandardCharsets;
import java.nio.file.Files;
import java.nio.file.Paths;
import java.util.ArrayList;
import java.util.HashMap;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import org.apache.rocketmq.filter.expression.EvaluationContext;
import org.apache.rocketmq.filter.expression.Expression;
import org.apache.rocketmq.filter.parser.SelectorParser;

/**
 * What RocketMQ's own filter module says: {@code Filter FILE}, a JSON object a line, {@code {"sql", "rows": [{...}]}}.
 *
 * <p>For each line one: {@code {"refused": "..."}}, or {@code {"found": [true, false, null or "thrown", ...]}}.
 */
public final class Filter {
    private static final class Row implements EvaluationContext {
        private final Map<String, Object> values;

        Row(Map<String, Object> values) {
            this.values = values;
        }

        @Override
        public Object get(String name) {
            return values.get(name);
        }

        @Override
        public Map<String, Object> keyValues() {
            return values;
        }
    }

    public static void main(String[] args) throws Exception {
        PrintStream out = new PrintStream(System.out, false, "UTF-8");
        for (String line : Files.readAllLines(Paths.get(args[0]), StandardCharsets.UTF_8)) {
            out.println(Json.write(answer((Map<?, ?>) Json.parse(line))));
        }
        out.flush();
        Runtime.getRuntime().halt(0);
    }

    private static Map<String, Object> answer(Map<?, ?> asked) {
        Map<String, Object> answer = new LinkedHashMap<>();
        Expression expression;
        try {
            expression = SelectorParser.parse((String) asked.get("sql"));
        } catch (Throwable thrown) {
            Throwable cause = thrown.getCause() == null ? thrown : thrown.getCause();
            answer.put("refused", String.valueOf(cause.getMessage()));
            return answer;
        }
        List<Object> found = new ArrayList<>();
        for (Object row : (List<?>) asked.get("rows")) {
            Map<String, Object> values = new HashMap<>();
            ((Map<?, ?>) row).forEach((name, value) -> values.put((String) name, value));
            try {
                found.add(expression.evaluate(new Row(values)));
            } catch (Throwable thrown) {
                found.add("thrown");
            }
        }
        answer.put("found", found);
        return answer;
    }
}
