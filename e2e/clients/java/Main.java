import io.lettuce.core.ClientOptions;
import io.lettuce.core.RedisClient;
import io.lettuce.core.RedisCommandExecutionException;
import io.lettuce.core.RedisFuture;
import io.lettuce.core.RedisURI;
import io.lettuce.core.Value;
import io.lettuce.core.api.StatefulRedisConnection;
import io.lettuce.core.codec.ByteArrayCodec;
import io.lettuce.core.protocol.ProtocolVersion;
import java.io.IOException;
import java.nio.charset.StandardCharsets;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.Base64;
import java.util.List;
import java.util.Map;
import java.util.Properties;
import java.util.concurrent.ExecutorService;
import java.util.concurrent.Executors;
import java.util.concurrent.Future;
import java.util.concurrent.TimeUnit;
import java.util.stream.Collectors;
import java.util.stream.StreamSupport;
import redis.clients.jedis.DefaultJedisClientConfig;
import redis.clients.jedis.HostAndPort;
import redis.clients.jedis.JedisPooled;
import redis.clients.jedis.Pipeline;
import redis.clients.jedis.RedisProtocol;
import redis.clients.jedis.Response;
import redis.clients.jedis.exceptions.JedisDataException;

/**
 * Asks a router with unmodified Jedis and Lettuce: {@code Main HOST PORT [FILE]}. Prints what it checked; ends with 1 at the
 * first wrong answer.
 */
public final class Main {
    private static final String JFK = "\"iata\":\"JFK\"";

    public static void main(String[] arguments) throws Exception {
        HostAndPort address = new HostAndPort(arguments[0], Integer.parseInt(arguments[1]));
        if (arguments.length > 2) {
            List<String> lines = Files.readAllLines(Path.of(arguments[2]));
            askTableByJedis(address, RedisProtocol.RESP2, lines);
            askTableByJedis(address, RedisProtocol.RESP3, lines);
            askTableByLettuce(address, ProtocolVersion.RESP2, lines);
            askTableByLettuce(address, ProtocolVersion.RESP3, lines);
            return;
        }
        askByJedis(address, null);
        askByJedis(address, RedisProtocol.RESP2);
        askByJedis(address, RedisProtocol.RESP3);
        askByLettuce(address, null);
        askByLettuce(address, ProtocolVersion.RESP2);
        askByLettuce(address, ProtocolVersion.RESP3);
    }

    private static void askByJedis(HostAndPort address, RedisProtocol protocol) throws Exception {
        String who = name("jedis " + jedisVersion(), protocol);
        DefaultJedisClientConfig.Builder settings = DefaultJedisClientConfig.builder();
        if (protocol != null) {
            settings.protocol(protocol);
        }
        try (JedisPooled client = new JedisPooled(address, settings.build())) {
            check(client.get("KJFK").contains(JFK), who, "GET");
            check(client.get("nowhere") == null, who, "a missing key is null");
            List<String> values = client.mget("KJFK", "nowhere", " egll ");
            check(values.get(1) == null && values.get(2).contains("LHR"), who, "MGET", values);
            check(client.exists("KJFK", "nowhere") == 1, who, "EXISTS");
            String refusal = "";
            try {
                client.set("KJFK", "x");
            } catch (JedisDataException error) {
                refusal = error.getMessage();
            }
            check(refusal.startsWith("READONLY"), who, "SET is refused", refusal);
            List<Response<String>> answers = new ArrayList<>();
            try (Pipeline pipeline = client.pipelined()) {
                for (int number = 0; number < 1000; number++) {
                    answers.add(pipeline.get("KJFK"));
                }
                pipeline.sync();
            }
            check(answers.stream().allMatch(answer -> answer.get().contains(JFK)), who, "a pipeline of 1,000");
            ExecutorService threads = Executors.newFixedThreadPool(50);
            List<Future<String>> found = new ArrayList<>();
            for (int number = 0; number < 200; number++) {
                found.add(threads.submit(() -> client.get("KJFK")));
            }
            for (Future<String> answer : found) {
                check(answer.get().contains(JFK), who, "", answer.get());
            }
            threads.shutdown();
            check(threads.awaitTermination(60, TimeUnit.SECONDS), who, "200 lookups of 50 threads");
        }
    }

    private static void askByLettuce(HostAndPort address, ProtocolVersion protocol) throws Exception {
        String version = RedisClient.class.getPackage().getImplementationVersion();
        String who = name("lettuce " + version.split("/")[0], protocol);
        RedisClient client = RedisClient.create(RedisURI.create(address.getHost(), address.getPort()));
        if (protocol != null) {
            client.setOptions(ClientOptions.builder().protocolVersion(protocol).build());
        }
        try (StatefulRedisConnection<String, String> connection = client.connect()) {
            var sync = connection.sync();
            check(sync.get("KJFK").contains(JFK), who, "GET");
            check(sync.get("nowhere") == null, who, "a missing key is null");
            var values = sync.mget("KJFK", "nowhere", " egll ");
            check(!values.get(1).hasValue() && values.get(2).getValue().contains("LHR"), who, "MGET", values);
            check(sync.exists("KJFK", "nowhere") == 1, who, "EXISTS");
            String refusal = "";
            try {
                sync.set("KJFK", "x");
            } catch (RedisCommandExecutionException error) {
                refusal = error.getMessage();
            }
            check(refusal.startsWith("READONLY"), who, "SET is refused", refusal);
            List<RedisFuture<String>> answers = new ArrayList<>();
            for (int number = 0; number < 1000; number++) {
                answers.add(connection.async().get("KJFK"));
            }
            for (RedisFuture<String> answer : answers) {
                check(answer.get(60, TimeUnit.SECONDS).contains(JFK), who, "", answer.get());
            }
            check(connection.isOpen(), who, "1,000 at once on one connection");
        } finally {
            client.shutdown();
        }
    }

    /** Performs a command. */
    private interface Performer {
        Object perform(String command, byte[][] words) throws Exception;
    }

    /** Performs the commands of a file of run.py. Each line is a command and its words in base64. */
    private static void askTable(String who, List<String> lines, Performer performer) {
        for (int number = 0; number < lines.size(); number++) {
            String[] fields = lines.get(number).split("\t", -1);
            byte[][] words = new byte[fields.length - 1][];
            for (int index = 1; index < fields.length; index++) {
                words[index - 1] = Base64.getDecoder().decode(fields[index]);
            }
            Object found;
            try {
                found = performer.perform(fields[0], words);
            } catch (Exception error) {
                found = error;
            }
            System.out.println(String.join("\t", "answer", who, String.valueOf(number), answer(found)));
        }
    }

    /** Writes an answer like run.py. */
    private static String answer(Object value) {
        if (value == null) {
            return "nil";
        } else if (value instanceof Exception error) {
            return "!" + error.getMessage().split(" ")[0];
        } else if (value instanceof byte[] bytes) {
            return "'" + Base64.getEncoder().encodeToString(bytes);
        } else if (value instanceof String text) {
            return answer(text.getBytes(StandardCharsets.UTF_8));
        } else if (value instanceof Value<?> item) {
            return answer(item.hasValue() ? item.getValue() : null);
        } else if (value instanceof Response<?> response) {
            return answer(response.get());
        } else if (value instanceof Map<?, ?> map) {
            var pairs = map.entrySet().stream().map(pair -> answer(pair.getKey()) + ":" + answer(pair.getValue()));
            return pairs.sorted().collect(Collectors.joining(",", "{", "}"));
        } else if (value instanceof Iterable<?> items) {
            var answers = StreamSupport.stream(items.spliterator(), false).map(Main::answer);
            return answers.collect(Collectors.joining(",", "[", "]"));
        }
        return String.valueOf(value);
    }

    private static void askTableByJedis(HostAndPort address, RedisProtocol protocol, List<String> lines) throws Exception {
        var settings = DefaultJedisClientConfig.builder().protocol(protocol).build();
        try (JedisPooled client = new JedisPooled(address, settings)) {
            askTable("jedis " + jedisVersion(), lines, (command, words) -> switch (command) {
                case "GET" -> client.get(words[0]);
                case "MGET" -> client.mget(words);
                case "EXISTS" -> client.exists(words);
                case "TYPE" -> client.type(words[0]);
                case "TTL" -> client.ttl(words[0]);
                case "STRLEN" -> client.strlen(words[0]);
                case "GETRANGE" -> client.getrange(words[0], 2, 5);
                case "HGET" -> client.hget(words[0], words[1]);
                case "HMGET" -> client.hmget(words[0], Arrays.copyOfRange(words, 1, words.length));
                case "HKEYS" -> client.hkeys(words[0]);
                case "HGETALL" -> client.hgetAll(words[0]);
                case "SET" -> client.set(words[0], words[1]);
                case "MULTI" -> {
                    try (var queue = client.multi()) {
                        queue.get(words[0]);
                        queue.hget(words[0], words[1]);
                        queue.get(words[2]);
                        queue.strlen(words[0]);
                        yield queue.exec();
                    }
                }
                case "PIPELINE" -> {
                    try (Pipeline queue = client.pipelined()) {
                        yield queueFour(queue, words);
                    }
                }
                default -> throw new IllegalArgumentException(command);
            });
        }
    }

    private static List<Response<?>> queueFour(Pipeline queue, byte[][] words) {
        List<Response<?>> answers = new ArrayList<>();
        answers.add(queue.get(words[0]));
        answers.add(queue.hget(words[0], words[1]));
        answers.add(queue.get(words[2]));
        answers.add(queue.strlen(words[0]));
        queue.sync();
        return answers;
    }

    private static void askTableByLettuce(HostAndPort address, ProtocolVersion protocol, List<String> lines) {
        RedisClient client = RedisClient.create(RedisURI.create(address.getHost(), address.getPort()));
        client.setOptions(ClientOptions.builder().protocolVersion(protocol).build());
        String version = RedisClient.class.getPackage().getImplementationVersion().split("/")[0];
        try (StatefulRedisConnection<byte[], byte[]> connection = client.connect(ByteArrayCodec.INSTANCE)) {
            var sync = connection.sync();
            var async = connection.async();
            askTable("lettuce " + version, lines, (command, words) -> switch (command) {
                case "GET" -> sync.get(words[0]);
                case "MGET" -> sync.mget(words);
                case "EXISTS" -> sync.exists(words);
                case "TYPE" -> sync.type(words[0]);
                case "TTL" -> sync.ttl(words[0]);
                case "STRLEN" -> sync.strlen(words[0]);
                case "GETRANGE" -> sync.getrange(words[0], 2, 5);
                case "HGET" -> sync.hget(words[0], words[1]);
                case "HMGET" -> sync.hmget(words[0], Arrays.copyOfRange(words, 1, words.length));
                case "HKEYS" -> sync.hkeys(words[0]);
                case "HGETALL" -> sync.hgetall(words[0]);
                case "SET" -> sync.set(words[0], words[1]);
                case "MULTI" -> {
                    sync.multi();
                    sync.get(words[0]);
                    sync.hget(words[0], words[1]);
                    sync.get(words[2]);
                    sync.strlen(words[0]);
                    yield sync.exec();
                }
                case "PIPELINE" -> {
                    List<RedisFuture<?>> sent = new ArrayList<>();
                    sent.add(async.get(words[0]));
                    sent.add(async.hget(words[0], words[1]));
                    sent.add(async.get(words[2]));
                    sent.add(async.strlen(words[0]));
                    List<Object> found = new ArrayList<>();
                    for (RedisFuture<?> answer : sent) {
                        found.add(answer.get(60, TimeUnit.SECONDS));
                    }
                    yield found;
                }
                default -> throw new IllegalArgumentException(command);
            });
        } finally {
            client.shutdown();
        }
    }

    private static String jedisVersion() throws IOException {
        Properties found = new Properties();
        try (var file = Main.class.getResourceAsStream("/META-INF/maven/redis.clients/jedis/pom.properties")) {
            found.load(file);
        }
        return found.getProperty("version");
    }

    private static String name(String library, Object protocol) {
        return library + (protocol == null ? "" : ", " + protocol);
    }

    /** Ends the program unless {@code holds}; prints the check's name, if it has one. */
    private static void check(boolean holds, String who, String what, Object... found) {
        if (!holds) {
            System.err.println(who + ": " + what + ": found " + List.of(found));
            System.exit(1);
        }
        if (!what.isEmpty()) {
            System.out.println(who + ": " + what);
        }
    }
}
