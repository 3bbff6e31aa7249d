package id.hapax.hooks;

import id.hapax.client.TestServer.Failed;
import id.hapax.cosid.HapaxMachineIds;
import java.io.BufferedReader;
import java.io.IOException;
import java.net.InetAddress;
import java.net.ServerSocket;
import java.net.Socket;
import java.net.URI;
import java.nio.file.Files;
import java.nio.file.Path;
import java.time.Duration;
import java.util.ArrayList;
import java.util.Comparator;
import java.util.HashSet;
import java.util.List;
import java.util.Set;
import java.util.concurrent.Callable;
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
