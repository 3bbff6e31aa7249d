package id.hapax.hooks;

import com.sun.net.httpserver.HttpServer;
import id.hapax.client.TestServer.Failed;
import id.hapax.cosid.HapaxMachineIds;
import java.io.BufferedReader;
import java.io.IOException;
import java.net.InetAddress;
import java.net.InetSocketAddress;
import java.net.ServerSocket;
import java.net.Socket;
import java.net.URI;
import java.nio.charset.StandardCharsets;
import java.nio.file.Files;
import java.nio.file.Path;
import java.time.Duration;
import java.util.ArrayList;
import java.util.Comparator;
import java.util.HashSet;
import java.util.List;
import java.util.Set;
import java.util.concurrent.Callable;
import java.util.concurrent.ConcurrentHashMap;
import java.util.stream.Stream;
import me.ahoo.cosid.CosIdException;
import me.ahoo.cosid.machine.InstanceId;
import me.ahoo.cosid.machine.MachineIdLostException;
import me.ahoo.cosid.snowflake.MillisecondSnowflakeId;
import me.ahoo.cosid.snowflake.SnowflakeId;

/**
 * Programs with CosId, beside the real worker hold: no two have a machine ID at once, and one stops when its time is over.
 * With an address it is such a program: it prints its machine ID, or "none", and takes numbers until it fails.
 */
public final class CosIdTest {
    private static final Duration LONG = Duration.ofMinutes(3);
    private static final long PAUSE = 20; // milliseconds between two looks
    private static final int NUMBERS = 200; // of a program; no two programs have one in common
    private static final String GRANT = "4s";

    public static void main(String[] args) throws Exception {
        if (args.length > 0) {
            program(URI.create(args[0]));
            return;
        }
        test();
        answers();
        namespaces();
        System.out.println("java CosId: passed");
    }

    private static int distribute(HapaxMachineIds machines) {
        return machines.distribute("orders", 10, InstanceId.NONE, Duration.ZERO).getMachineId();
    }

    private static void program(URI hold) throws Exception {
        HapaxMachineIds machines = new HapaxMachineIds(hold);
        try {
            System.out.println("machine " + distribute(machines));
        } catch (CosIdException e) {
            System.out.println("none");
            return;
        }
        SnowflakeId ids = machines.guarded(new MillisecondSnowflakeId(distribute(machines)));
        System.in.read(); // until the test has seen it
        for (int i = 0; i < NUMBERS; i++) {
            System.out.println(ids.generate());
        }
        machines.close();
    }

    static void test() throws Exception {
        Path dir = Files.createTempDirectory("hapax");
        String server = "127.0.0.1:" + port();
        URI one = URI.create("http://127.0.0.1:" + port() + "/");
        URI other = URI.create("http://127.0.0.1:" + port() + "/");
        List<Process> all = new ArrayList<>();
        try (HapaxMachineIds here = new HapaxMachineIds(one); HapaxMachineIds there = new HapaxMachineIds(one)) {
            all.add(hapax(dir, "serve", "--data", dir + "/data", "--http", server, "--pools", "{default: {grant: " + GRANT + ", max_grant: " + GRANT + ", lease: 3s}}"));
            String[] hold = {"worker", "hold", "--server", "http://" + server, "--for", "cosid", "--grant", GRANT, "--grace", "1s", "--http"};
            Process first = hapax(dir, with(hold, one.getAuthority()));
            all.add(first);
            all.add(hapax(dir, with(hold, other.getAuthority())));
            int machine = await(() -> distribute(here));
            refuses("a second program at the same address has a machine ID", () -> distribute(there));
            Process neighbour = java(one);
            check(neighbour.inputReader().readLine().equals("none"), "a program of its own has a machine ID of another");

            SnowflakeId bare = new MillisecondSnowflakeId(machine);
            SnowflakeId guarded = here.guarded(bare);
            Set<Long> numbers = new HashSet<>();
            for (int i = 0; i < NUMBERS; i++) {
                check(numbers.add(guarded.generate()), "a number came twice");
            }
            check(bare.idConverter() == guarded.idConverter() && guarded.getMachineId() == machine && machine == distribute(here), "it differs from its generator");

            // Another program, beside a worker hold of its own.
            await(() -> {
                try (Socket s = new Socket(other.getHost(), other.getPort())) {
                    return true;
                } catch (IOException e) {
                    return null; // it waits for its worker ID
                }
            });
            Process second = java(other);
            BufferedReader said = second.inputReader();
            String its = said.readLine();
            check(its.startsWith("machine ") && !its.equals("machine " + machine), "two programs have " + its);
            second.outputWriter().append('\n').flush();
            for (String line = said.readLine(); line != null; line = said.readLine()) {
                check(numbers.add(Long.parseLong(line)), "two programs have " + line);
            }

            first.destroyForcibly().waitFor(); // it says nothing more: the time that was told ends
            await(() -> {
                try {
                    numbers.add(guarded.generate());
                    return null;
                } catch (MachineIdLostException e) {
                    return e;
                }
            });
            bare.generate(); // nothing but the guard stops it
            refuses("a lost machine ID is guarded", () -> {
                here.guard("orders", InstanceId.NONE, Duration.ZERO);
                return null;
            });

            // What came free is granted anew, to one of two.
            Process again = hapax(dir, with(hold, one.getAuthority()));
            all.add(again);
            int next = await(() -> distribute(there));
            SnowflakeId later = there.guarded(new MillisecondSnowflakeId(next));
            check(numbers.add(later.generate()), "the next program repeats a number");
            refuses("the first program has the second one's", () -> distribute(here));
            there.revert("orders", InstanceId.NONE);
            refuses("it goes on with what it gave back", later::generate);
            check(await(() -> distribute(here)) == next, "what was given back is not free");
        } finally {
            all.forEach(Process::destroyForcibly);
            for (Process one_ : all) {
                one_.waitFor();
            }
            try (Stream<Path> files = Files.walk(dir)) {
                files.sorted(Comparator.reverseOrder()).forEach(file -> file.toFile().delete());
            }
        }
    }

    /** A worker hold that answers what it is told to. */
    private static final class Hold implements AutoCloseable {
        final HttpServer server = HttpServer.create(new InetSocketAddress(InetAddress.getLoopbackAddress(), 0), 0);
        final Set<String> claims = ConcurrentHashMap.newKeySet(); // not given up
        final Set<String> names = ConcurrentHashMap.newKeySet(); // that were given up
        volatile int worker = 17;
        volatile long until = Long.MAX_VALUE;
        volatile boolean silent;

        Hold() throws IOException {
            server.createContext("/", exchange -> {
                String name = exchange.getRequestURI().getQuery();
                if (exchange.getRequestMethod().equals("DELETE")) {
                    claims.remove(name);
                    names.add(name);
                    exchange.sendResponseHeaders(204, -1);
                } else if (!silent) {
                    claims.add(name);
                    long end = Math.min(until, System.currentTimeMillis() + LONG.toMillis());
                    byte[] told = ("{\"worker\":" + worker + ",\"until\":\"\",\"until_ms\":" + end + "}").getBytes(StandardCharsets.UTF_8);
                    exchange.sendResponseHeaders(200, told.length);
                    exchange.getResponseBody().write(told);
                }
                exchange.close(); // without an answer, if it is silent
            });
            server.start();
        }

        URI uri() {
            return URI.create("http://127.0.0.1:" + server.getAddress().getPort() + "/");
        }

        @Override
        public void close() {
            server.stop(0);
        }
    }

    /** A generator fails for good when its machine ID is lost, whatever worker hold says afterwards. */
    private static void answers() throws Exception {
        try (Hold hold = new Hold(); HapaxMachineIds machines = new HapaxMachineIds(hold.uri())) {
            SnowflakeId first = machines.guarded(new MillisecondSnowflakeId(distribute(machines)));
            first.generate();
            refuses("another machine ID is guarded", () -> machines.guarded(new MillisecondSnowflakeId(18)));

            hold.worker = 18; // of another worker hold at that address
            await(() -> fails(first));
            await(() -> hold.claims.isEmpty() ? true : null); // 18 is for whoever asks
            SnowflakeId second = await(() -> machines.guarded(new MillisecondSnowflakeId(distribute(machines))));
            check(second.getMachineId() == 18, "it is not told the other machine ID");
            second.generate();
            refuses("the lost machine ID is used again beside the new one", first::generate);

            machines.close();
            hold.until = System.currentTimeMillis() + Duration.ofSeconds(3).toMillis();
            SnowflakeId third = await(() -> machines.guarded(new MillisecondSnowflakeId(distribute(machines))));
            hold.silent = true;
            await(() -> fails(third)); // its time is over
            hold.until = Long.MAX_VALUE;
            hold.silent = false;
            for (int look = 0; look < 100; look++) { // longer than until it would ask
                check(fails(third) != null, "a machine ID is taken up again");
                Thread.sleep(PAUSE);
            }
            int again = await(() -> distribute(machines));
            check(again == third.getMachineId(), "it has another machine ID");
            SnowflakeId fourth = machines.guarded(new MillisecondSnowflakeId(again));
            fourth.generate();
            refuses("a generator goes on whose machine ID was another program's between", third::generate);

            machines.close();
            refuses("it goes on with what it gave back", fourth::generate);
            distribute(machines);
            check(hold.claims.size() == 1 && hold.names.stream().noneMatch(hold.claims::contains), "it takes the machine ID by a name by which a late request gives it up");
        }
    }

    /** Returns whether a generator fails, or null. */
    private static Boolean fails(SnowflakeId ids) {
        try {
            ids.generate();
            return null;
        } catch (MachineIdLostException e) {
            return true;
        }
    }

    /** Of each namespace one instance has the machine ID, until the last one gives it back. */
    private static void namespaces() throws Exception {
        InstanceId a = InstanceId.of("10.0.0.1", 80, false);
        InstanceId b = InstanceId.of("10.0.0.1", 81, false);
        try (Hold hold = new Hold(); HapaxMachineIds machines = new HapaxMachineIds(hold.uri())) {
            refuses("it has a machine ID beyond its bits", () -> machines.distribute("orders", 4, a, Duration.ZERO));
            check(hold.claims.isEmpty(), "it keeps what it cannot use");
            machines.distribute("orders", 10, a, Duration.ZERO);
            SnowflakeId orders = machines.guarded(new MillisecondSnowflakeId(17));
            machines.distribute("orders", 10, a, Duration.ZERO);
            refuses("two instances of a namespace have one machine ID", () -> machines.distribute("orders", 10, b, Duration.ZERO));
            refuses("the one without a machine ID is guarded", () -> {
                machines.guard("orders", b, Duration.ZERO);
                return null;
            });
            refuses("a namespace without a machine ID is guarded", () -> {
                machines.guard("users", a, Duration.ZERO);
                return null;
            });
            refuses("it has a machine ID beyond its bits", () -> machines.distribute("users", 4, a, Duration.ZERO));
            orders.generate();
            machines.distribute("users", 10, b, Duration.ZERO);
            machines.revert("orders", b); // which has none
            machines.guard("orders", a, Duration.ZERO);
            machines.revert("orders", a);
            machines.guard("users", b, Duration.ZERO);
            orders.generate();
            check(hold.claims.size() == 1, "it gives back what a namespace uses");
            refuses("another instance has the machine ID beside the generators of the first", () -> machines.distribute("orders", 10, b, Duration.ZERO));
            machines.revert("users", b);
            refuses("it goes on with what it gave back", orders::generate);
            check(hold.claims.isEmpty(), "it does not give it back");
            machines.distribute("orders", 10, b, Duration.ZERO);
        }
    }

    private static void check(boolean ok, String why) {
        if (!ok) {
            throw new Failed(why);
        }
    }

    private static void refuses(String otherwise, Callable<?> f) throws Exception {
        try {
            f.call();
        } catch (CosIdException e) {
            return;
        }
        throw new Failed(otherwise);
    }

    /** Calls until something comes. */
    private static <T> T await(Callable<T> f) throws Exception {
        for (long until = System.nanoTime() + LONG.toNanos(); ; ) {
            Exception last = null;
            try {
                T got = f.call();
                if (got != null) {
                    return got;
                }
            } catch (CosIdException e) {
                last = e;
            }
            if (System.nanoTime() - until > 0) {
                throw new Failed("it does not come: " + last);
            }
            Thread.sleep(PAUSE);
        }
    }

    private static String[] with(String[] words, String more) {
        List<String> all = new ArrayList<>(List.of(words));
        all.add(more);
        return all.toArray(new String[0]);
    }

    private static Process hapax(Path dir, String... args) throws IOException {
        List<String> command = new ArrayList<>(List.of(args));
        command.add(0, System.getenv("HAPAX"));
        return new ProcessBuilder(command).directory(dir.toFile()).redirectOutput(ProcessBuilder.Redirect.DISCARD).redirectError(dir.resolve("log").toFile()).start();
    }

    private static Process java(URI hold) throws IOException {
        String program = Path.of(System.getProperty("java.home"), "bin", "java").toString();
        return new ProcessBuilder(program, "-XX:+UseSerialGC", "-cp", System.getProperty("java.class.path"), CosIdTest.class.getName(), hold.toString())
                .redirectError(ProcessBuilder.Redirect.INHERIT).start();
    }

    private static int port() throws IOException {
        try (ServerSocket s = new ServerSocket(0, 1, InetAddress.getLoopbackAddress())) {
            return s.getLocalPort();
        }
    }

    private CosIdTest() {}
}
