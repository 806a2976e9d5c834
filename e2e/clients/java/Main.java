import io.lettuce.core.ClientOptions;
import io.lettuce.core.RedisClient;
import io.lettuce.core.RedisCommandExecutionException;
import io.lettuce.core.RedisFuture;
import io.lettuce.core.RedisURI;
import io.lettuce.core.api.StatefulRedisConnection;
import io.lettuce.core.protocol.ProtocolVersion;
import java.io.IOException;
import java.util.ArrayList;
import java.util.List;
import java.util.Properties;
import java.util.concurrent.ExecutorService;
import java.util.concurrent.Executors;
import java.util.concurrent.Future;
import java.util.concurrent.TimeUnit;
import redis.clients.jedis.DefaultJedisClientConfig;
import redis.clients.jedis.HostAndPort;
import redis.clients.jedis.JedisPooled;
import redis.clients.jedis.Pipeline;
import redis.clients.jedis.RedisProtocol;
import redis.clients.jedis.Response;
import redis.clients.jedis.exceptions.JedisDataException;

/**
 * Asks a router by Jedis and by Lettuce, which know nothing of it: {@code Main HOST PORT}. Prints what was seen; ends
 * with 1 at the first thing that is not as it should be.
 */
public final class Main {
    private static final String JFK = "\"iata\":\"JFK\"";

    public static void main(String[] arguments) throws Exception {
        HostAndPort address = new HostAndPort(arguments[0], Integer.parseInt(arguments[1]));
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

    /** Ends the program unless {@code holds}; says what was checked, if that has a name. */
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
