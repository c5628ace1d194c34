import java.lang.management.ManagementFactory;
import java.util.ArrayList;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import java.util.concurrent.LinkedBlockingQueue;
import java.io.BufferedReader;
import java.io.InputStreamReader;
import org.apache.flink.api.common.typeinfo.TypeInformation;
import org.apache.flink.api.common.typeinfo.Types;
import org.apache.flink.configuration.Configuration;
import org.apache.flink.runtime.util.EnvironmentInformation;
import org.apache.flink.streaming.api.environment.StreamExecutionEnvironment;
import org.apache.flink.streaming.api.functions.sink.legacy.SinkFunction;
import org.apache.flink.streaming.api.functions.source.legacy.SourceFunction;
import org.apache.flink.table.api.DataTypes;
import org.apache.flink.table.api.Schema;
import org.apache.flink.table.api.bridge.java.StreamTableEnvironment;
import org.apache.flink.types.Row;
import org.apache.flink.types.RowKind;

/**
 * The join in Flink SQL, streaming, changelogs in and out; asked as `peer.py` says.
 *
 * Arguments: the SQL, milliseconds that a mini-batch may wait (0: none are made). Source and sink
 * are of this process, so that no serialisation, file or socket is in a step's time. One slot,
 * state on the heap, no checkpoints.
 */
public final class JoinsInFlink {
    private static final long WAITS_MS = 400_000;
    private static final Map<String, LinkedBlockingQueue<List<Row>>> STEPS = new HashMap<>();
    private static final Map<Long, Long> GROUPS = new HashMap<>();
    private static Map<Long, Long> wanted = null;

    static {
        STEPS.put("r", new LinkedBlockingQueue<>());
        STEPS.put("s", new LinkedBlockingQueue<>());
    }

    /** What came and went of a table, step by step. */
    public static final class Rows implements SourceFunction<Row> {
        private final String table;

        Rows(String table) {
            this.table = table;
        }

        @Override
        public void run(SourceContext<Row> context) throws Exception {
            while (true) {
                for (Row row : STEPS.get(table).take()) {
                    context.collect(row);
                }
            }
        }

        @Override
        public void cancel() {}
    }

    /** Keeps the groups as they stand, and wakes who waits for them. */
    public static final class Answer implements SinkFunction<Row> {
        @Override
        public void invoke(Row row, Context context) {
            Long key = (Long) row.getField(0);
            Long total = (Long) row.getField(1);
            synchronized (GROUPS) {
                if (row.getKind() == RowKind.INSERT || row.getKind() == RowKind.UPDATE_AFTER) {
                    GROUPS.put(key, total);
                } else {
                    GROUPS.remove(key, total);
                }
                if (wanted != null && GROUPS.size() == wanted.size() && GROUPS.equals(wanted)) {
                    GROUPS.notifyAll();
                }
            }
        }
    }

    public static void main(String[] arguments) throws Exception {
        String sql = arguments[0];
        long waits = Long.parseLong(arguments[1]);
        Configuration settings = new Configuration();
        settings.setString("parallelism.default", "1");
        settings.setString("pipeline.object-reuse", "true");
        StreamExecutionEnvironment environment =
                StreamExecutionEnvironment.createLocalEnvironment(1, settings);
        StreamTableEnvironment tables = StreamTableEnvironment.create(environment);
        if (waits > 0) {
            tables.getConfig().set("table.exec.mini-batch.enabled", "true");
            tables.getConfig().set("table.exec.mini-batch.allow-latency", waits + " ms");
            tables.getConfig().set("table.exec.mini-batch.size", "1000000");
        }
        for (String name : STEPS.keySet()) {
            TypeInformation<Row> type =
                    Types.ROW_NAMED(new String[] {"a", "b"}, Types.LONG, Types.LONG);
            Schema schema =
                    Schema.newBuilder()
                            .column("a", DataTypes.BIGINT().notNull())
                            .column("b", DataTypes.BIGINT().notNull())
                            .build();
            tables.createTemporaryView(
                    name,
                    tables.fromChangelogStream(
                            environment.addSource(new Rows(name), name, type), schema));
        }
        tables.toChangelogStream(tables.sqlQuery(sql)).addSink(new Answer());
        environment.executeAsync("join");
        say("{\"flink\": \"" + EnvironmentInformation.getVersion() + "\", \"java\": \""
                + Runtime.version() + "\", \"heap_mb\": " + (Runtime.getRuntime().maxMemory() >> 20)
                + ", \"mini_batch_ms\": " + waits + "}");
        follow();
        System.exit(0);
    }

    private static void follow() throws Exception {
        BufferedReader input = new BufferedReader(new InputStreamReader(System.in));
        Map<String, List<Row>> changes = new HashMap<>();
        Map<Long, Long> groups = new HashMap<>();
        for (String line = input.readLine(); line != null; line = input.readLine()) {
            String[] parts = line.split(" ");
            if (parts[0].equals("+") || parts[0].equals("-")) {
                RowKind kind = parts[0].equals("+") ? RowKind.INSERT : RowKind.DELETE;
                Row row = Row.ofKind(kind, Long.valueOf(parts[3]), Long.valueOf(parts[4]));
                changes.computeIfAbsent(parts[1], name -> new ArrayList<>()).add(row);
            } else if (parts[0].equals("=")) {
                groups.put(Long.valueOf(parts[1]), Long.valueOf(parts[2]));
            } else if (parts[0].equals("rest")) {
                long began = cpu();
                Thread.sleep(1_000);
                say("{\"cpu_ms\": " + (cpu() - began) / 1e6 + "}");
            } else {
                say(stepped(changes, groups));
                changes = new HashMap<>();
                groups = new HashMap<>();
            }
        }
    }

    /** Hands the rows over, and waits until the groups are these. */
    private static String stepped(Map<String, List<Row>> changes, Map<Long, Long> groups)
            throws Exception {
        long cpu = cpu();
        long wall = System.nanoTime();
        synchronized (GROUPS) {
            wanted = groups;
            for (Map.Entry<String, List<Row>> one : changes.entrySet()) {
                STEPS.get(one.getKey()).put(one.getValue());
            }
            long end = System.currentTimeMillis() + WAITS_MS;
            while (!GROUPS.equals(groups) && System.currentTimeMillis() < end) {
                GROUPS.wait(1_000);
            }
            cpu = cpu() - cpu;
            wall = System.nanoTime() - wall;
            wanted = null;
            if (!GROUPS.equals(groups)) {
                return told();
            }
        }
        return "{\"cpu_ms\": " + cpu / 1e6 + ", \"wall_ms\": " + wall / 1e6 + "}";
    }

    private static String told() {
        List<String> pairs = new ArrayList<>();
        for (Map.Entry<Long, Long> one : GROUPS.entrySet()) {
            pairs.add("[" + one.getKey() + ", " + one.getValue() + "]");
        }
        return "{\"groups\": [" + String.join(", ", pairs) + "]}";
    }

    private static long cpu() {
        return ((com.sun.management.OperatingSystemMXBean)
                        ManagementFactory.getOperatingSystemMXBean())
                .getProcessCpuTime();
    }

    private static void say(String line) {
        System.out.println(line);
        System.out.flush();
    }
}
