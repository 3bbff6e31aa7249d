package id.hapax.client;

import id.hapax.client.TestServer.Failed;
import java.net.InetAddress;
import java.net.ServerSocket;
import java.nio.charset.StandardCharsets;
import java.nio.file.Files;
import java.nio.file.Path;
import java.nio.file.Paths;
import java.time.Duration;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.HashSet;
import java.util.List;
import java.util.Map;
import java.util.Set;
import java.util.TreeMap;
import java.util.concurrent.Callable;
import java.util.concurrent.CancellationException;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.CompletionException;
import java.util.concurrent.CyclicBarrier;
import java.util.concurrent.ExecutorService;
import java.util.concurrent.Executors;
import java.util.concurrent.Future;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.TimeoutException;
import java.util.function.Function;
import java.util.stream.Collectors;
import java.util.stream.Stream;

/** Plays all transcripts, and has broken clients fail those that are about what they do wrong. */
final class ClientTest {
    private static Path transcripts;

    public static void main(String[] args) throws Exception {
        transcripts = Paths.get(args[0]);
        HapaxClient.LOG.setLevel(java.util.logging.Level.OFF);
        List<Path> files;
        try (Stream<Path> all = Files.list(transcripts)) {
            files = all.filter(f -> f.toString().endsWith(".json")).sorted().collect(Collectors.toList());
        }
        check(files.size() > 30, "there are " + files.size() + " transcripts");
        Map<String, Callable<Void>> tests = new TreeMap<>();
        for (Path file : files) {
            tests.put(file.getFileName().toString(), () -> {
                Player.play(file, HapaxClient.Builder::build);
                return null;
            });
        }
        tests.put("twin: goes on after a copy", () -> caught("32", Deaf::new));
        tests.put("twin: uses a late answer", () -> caught("10", b -> new HapaxClient(b) {
            @Override
            Servers newServers(Builder b) {
                return new Late(b, executor);
            }
        }));
        tests.put("twin: goes past the end", () -> caught("20", b -> new HapaxClient(b) {
            @Override
            Line newLine(String tag) {
                return new Line(this, path(tag)) {
                    @Override
                    boolean over(Stretch stretch) {
                        return false;
                    }
                };
            }
        }));
        for (String name : new String[] {"08", "09"}) {
            tests.put("twin: counts a lost answer as taken, " + name, () -> caught(name, b -> new HapaxClient(b) {
                @Override
                Servers newServers(Builder b) {
                    return new Trusting(b, executor);
                }
            }));
        }
        tests.put("threads", ClientTest::threads);
        tests.put("futures", ClientTest::futures);
        tests.put("cancelled and late", ClientTest::cancelled);
        tests.put("the last code", ClientTest::lastCode);
        tests.put("the last code of another's fetch", ClientTest::lastCodeOfAnother);
        tests.put("futures whose callers wait for each other", ClientTest::barrier);
        tests.put("servers that hang before one that answers", ClientTest::hang);
        tests.put("answers without numbers", ClientTest::hostile);
        tests.put("wrong settings", ClientTest::settings);
        ExecutorService pool = Executors.newFixedThreadPool(8); // most of them wait
        Map<String, Future<Void>> done = new TreeMap<>();
        tests.forEach((name, test) -> done.put(name, pool.submit(test)));
        int failed = 0;
        for (Map.Entry<String, Future<Void>> test : done.entrySet()) {
            try {
                test.getValue().get();
            } catch (java.util.concurrent.ExecutionException e) {
                failed++;
                System.out.println("FAILED " + test.getKey() + ": " + e.getCause());
                if (!(e.getCause() instanceof Failed)) {
                    e.getCause().printStackTrace(System.out);
                }
            }
        }
        System.out.println("java: " + (tests.size() - failed) + " of " + tests.size() + " passed");
        System.exit(failed > 0 ? 1 : 0);
    }

    static void check(boolean ok, String why) {
        if (!ok) {
            throw new Failed(why);
        }
    }

    /** Has a broken client fail a transcript. */
    private static Void caught(String name, Function<HapaxClient.Builder, HapaxClient> make) throws Exception {
        Path file;
        try (Stream<Path> all = Files.list(transcripts)) {
            file = all.filter(f -> f.getFileName().toString().startsWith(name)).findFirst().get();
        }
        try {
            Player.play(file, make);
        } catch (Failed e) {
            return null;
        }
        throw new Failed("the broken client passes " + name);
    }

    /** A client that goes on with what it has after a copy was made of it. */
    private static final class Deaf extends HapaxClient {
        Deaf(Builder b) {
            super(b);
        }

        @Override
        public void handBack() {}
    }

    /** Those of a client that takes anew, and later uses the answer that came late, too. */
    private static final class Late extends Servers {
        private final ExecutorService executor;
        private Future<Answer> late;

        Late(HapaxClient.Builder b, ExecutorService executor) {
            super(b, executor);
            this.executor = executor;
        }

        @Override
        synchronized Answer send(String url, String body, long timeout) {
            try {
                if (late != null && late.isDone()) {
                    Future<Answer> was = late;
                    late = null;
                    return was.get();
                }
                Future<Answer> asked = executor.submit(() -> super.send(url, body, 60_000_000_000L));
                try {
                    return asked.get(timeout, TimeUnit.NANOSECONDS);
                } catch (TimeoutException e) {
                    late = asked;
                    throw HapaxException.unavailable("", e);
                }
            } catch (InterruptedException | java.util.concurrent.ExecutionException e) {
                throw new IllegalStateException(e);
            }
        }
    }

    /** Those of a client that counts what a lost answer held as taken. */
    private static final class Trusting extends Servers {
        private long above;
        private String store = "";

        Trusting(HapaxClient.Builder b, ExecutorService executor) {
            super(b, executor);
        }

        @Override
        synchronized Answer send(String url, String body, long timeout) {
            int count = ((Double) ((Map<?, ?>) Json.read(body)).get("count")).intValue();
            Answer answer;
            try {
                answer = super.send(url, body, timeout);
                store = answer.store;
            } catch (HapaxException e) {
                String made = "{\"count\":" + count + ",\"first\":\"" + (above + 1) + "\",\"delta\":\"1\",\"valid_for\":60}";
                answer = new Answer(200, store, null, made.getBytes(StandardCharsets.UTF_8));
            }
            above += count;
            return answer;
        }
    }

    private static HapaxClient.Builder patient(TestServer server) {
        return HapaxClient.builder(server.servers.toArray(new String[0])).timeout(Duration.ofSeconds(60)).callTimeout(Duration.ofSeconds(60));
    }

    private static Void threads() throws Exception {
        try (TestServer server = TestServer.plain("{}"); HapaxClient client = patient(server).build()) {
            Tag tag = client.tag("orders");
            ExecutorService pool = Executors.newFixedThreadPool(8);
            List<Future<long[]>> parts = new ArrayList<>();
            for (int i = 0; i < 8; i++) {
                parts.add(pool.submit(() -> {
                    long[] got = new long[5000];
                    for (int n = 0; n < got.length; n++) {
                        got[n] = tag.next();
                        check(n == 0 || got[n] > got[n - 1], "a thread's numbers do not ascend");
                    }
                    return got;
                }));
            }
            Set<Long> all = new HashSet<>();
            for (Future<long[]> part : parts) {
                for (long n : part.get()) {
                    all.add(n);
                }
            }
            pool.shutdown();
            check(all.size() == 40_000, "only " + all.size() + " different numbers");
            check(server.takes().size() < 100, "the step does not follow the use: " + server.takes());
        }
        return null;
    }

    private static Void futures() throws Exception {
        try (TestServer server = TestServer.plain("{}")) {
            HapaxClient client = patient(server).step(5, 50).build();
            Tag tag = client.tag("orders");
            List<CompletableFuture<long[]>> parts = new ArrayList<>();
            for (int i = 0; i < 300; i++) {
                parts.add(tag.takeAsync(3));
            }
            Set<Long> all = new HashSet<>();
            for (CompletableFuture<long[]> part : parts) {
                for (long n : part.join()) {
                    all.add(n);
                }
            }
            all.add(tag.nextAsync().join());
            check(all.size() == 901, "only " + all.size() + " different numbers");
            client.close();
            check("closed".equals(code(tag.nextAsync())), "a closed client gives numbers");
            check(server.ask("/requests", null).contains("handback"), "it hands nothing back");
        }
        return null;
    }

    private static String code(CompletableFuture<?> future) {
        try {
            return String.valueOf(future.join());
        } catch (CompletionException e) {
            return ((HapaxException) e.getCause()).code();
        }
    }

    private static Void cancelled() throws Exception {
        String slow = "{\"servers\":[{\"faults\":[{\"at\":1,\"do\":\"delay\",\"ms\":60000}]}]}";
        try (TestServer server = TestServer.plain(slow); HapaxClient client = patient(server).ahead(false).build()) {
            Tag tag = client.tag("orders");
            CompletableFuture<long[]> waiting = tag.takeAsync(1);
            waiting.cancel(true);
            try {
                waiting.join();
                throw new Failed("what was cancelled has a number");
            } catch (CancellationException e) {
                waiting = null;
            }
            check("unavailable".equals(code(tag.takeAsync(1, Duration.ofMillis(50)))), "there is a number");
            try {
                tag.take(1, Duration.ofMillis(50));
                throw new Failed("there is a number");
            } catch (HapaxException e) {
                check(e.reason() == HapaxException.Reason.UNAVAILABLE, "it fails with " + e);
            }
            Thread waits = new Thread(() -> {
                try {
                    tag.take(1, Duration.ofHours(1));
                } catch (HapaxException e) {
                    check(Thread.currentThread().isInterrupted() && e.reason() == HapaxException.Reason.UNAVAILABLE, "it fails with " + e.code());
                }
                try {
                    tag.codes(1);
                } catch (HapaxException e) {
                    check(Thread.currentThread().isInterrupted() && e.reason() == HapaxException.Reason.UNAVAILABLE, "it fails with " + e.code());
                    return;
                }
                throw new Failed("it was not interrupted");
            });
            boolean[] wrong = {false};
            waits.setUncaughtExceptionHandler((thread, e) -> wrong[0] = true);
            waits.start();
            waits.interrupt();
            waits.join();
            check(!wrong[0], "an interrupted thread waits, or forgets that it was interrupted");
        }
        return null;
    }

    /** A server gave a code, and the next answer does not come in time: a future fails with the code. */
    private static Void lastCode() throws Exception {
        String slow = "{\"servers\":[{\"faults\":[{\"at\":1,\"do\":\"fail\",\"code\":\"refill_pending\"},{\"at\":2,\"do\":\"delay\",\"ms\":600000}]}]}";
        try (TestServer server = TestServer.plain(slow); HapaxClient client = patient(server).ahead(false).timeout(Duration.ofSeconds(5)).build()) {
            String got = code(client.tag("orders").nextAsync());
            check("refill_pending".equals(got), "it fails with " + got);
        }
        return null;
    }

    /** The fetch is another call's, and calls that wait for it fail with the code that a server gave to that. */
    private static Void lastCodeOfAnother() throws Exception {
        String slow = "{\"servers\":[{\"faults\":[{\"at\":1,\"do\":\"fail\",\"code\":\"refill_pending\"},{\"at\":2,\"do\":\"delay\",\"ms\":600000}]}]}";
        try (TestServer server = TestServer.plain(slow); HapaxClient client = patient(server).ahead(false).build()) {
            Tag tag = client.tag("orders");
            tag.nextAsync();
            while (server.takes().size() < 2) {
                Thread.yield();
            }
            String got = code(tag.takeAsync(1, Duration.ofMillis(50)));
            check("refill_pending".equals(got), "a future fails with " + got);
            try {
                tag.take(1, Duration.ofMillis(50));
                throw new Failed("there is a number");
            } catch (HapaxException e) {
                check("refill_pending".equals(e.code()), "it fails with " + e.code());
            }
        }
        return null;
    }

    private static Void barrier() throws Exception {
        String slow = "{\"servers\":[{\"faults\":[{\"at\":1,\"do\":\"delay\",\"ms\":300}]}]}";
        try (TestServer server = TestServer.plain(slow); HapaxClient client = patient(server).ahead(false).build()) {
            CyclicBarrier all = new CyclicBarrier(3);
            List<CompletableFuture<Integer>> parts = new ArrayList<>();
            for (int i = 0; i < 3; i++) {
                parts.add(client.tag("orders").nextAsync().thenApply(n -> {
                    try {
                        return all.await(20, TimeUnit.SECONDS);
                    } catch (Exception e) {
                        throw new Failed("a future holds up the others: " + e);
                    }
                }));
            }
            for (CompletableFuture<Integer> part : parts) {
                part.join();
            }
        }
        return null;
    }

    private static Void hang() throws Exception {
        try (TestServer server = TestServer.plain("{}"); ServerSocket hangs = new ServerSocket(0, 9, InetAddress.getLoopbackAddress())) {
            String url = "http://127.0.0.1:" + hangs.getLocalPort();
            HapaxClient.Builder b = HapaxClient.builder(url, url, server.servers.get(0)).timeout(Duration.ofMillis(500)).callTimeout(Duration.ofMillis(300));
            try (HapaxClient client = b.build()) {
                check("unavailable".equals(code(client.tag("orders").nextAsync())), "there is a number");
                check(client.servers.preferred > 0, "its time never reaches the last");
                check(client.tag("orders").take(1, Duration.ofMinutes(1))[0] == 1, "there is no number");
            }
        }
        return null;
    }

    private static Void hostile() throws Exception {
        String first = "\"count\":1,\"first\":\"1\",\"delta\":\"1\",\"valid_for\":60";
        List<String> bodies = new ArrayList<>(Arrays.asList(
                "", "{", "{\"a\":" + new String(new char[100_000]).replace('\0', '['), "{}", "{\"count\":1}", "{\"count\":\"1\",\"first\":\"1\",\"delta\":\"1\"}",
                "{\"count\":0,\"ids\":[]}", "{\"count\":1.5,\"first\":\"1\",\"delta\":\"1\"}", "{\"count\":11,\"first\":\"1\",\"delta\":\"1\"}", "{\"count\":1,\"first\":1,\"delta\":\"1\"}",
                "{\"count\":1,\"first\":\"-1\",\"delta\":\"1\"}", "{\"count\":1,\"first\":\"9223372036854775808\",\"delta\":\"1\"}",
                "{\"count\":2,\"first\":\"9223372036854775807\",\"delta\":\"1\"}", "{\"count\":2,\"first\":\"1\",\"delta\":\"0\"}", "{\"count\":2,\"first\":\"5\",\"delta\":\"-1\"}", "{\"count\":2,\"first\":\"1\"}",
                "{\"count\":1,\"first\":\"" + new String(new char[100_000]).replace('\0', '9') + "\",\"delta\":\"1\"}", "{\"count\":2,\"ids\":[\"1\"]}", "{\"count\":1,\"ids\":[1]}",
                "{" + first.replace("60", "-1") + "}", "{" + first.replace("60", "[]") + "}", "{" + first.replace("60", "1e") + "}", "{" + first + ",\"a\":\"\\u00zz\"}"));
        String faults = bodies.stream().map(body -> "{\"at\":" + (bodies.indexOf(body) + 1) + ",\"do\":\"answer\",\"status\":200,\"body\":" + Json.quote(body) + "}").collect(Collectors.joining(","));
        try (TestServer server = TestServer.plain("{\"servers\":[{\"faults\":[" + faults + "]}]}"); HapaxClient client = patient(server).ahead(false).build()) {
            for (String body : bodies) {
                try {
                    throw new Failed(client.tag("orders").take(1, Duration.ofMillis(40))[0] + " from " + body);
                } catch (HapaxException e) {
                    check(e.getMessage().length() < 300, e.getMessage());
                }
            }
            client.next("orders");
        }
        return null;
    }

    private static Void settings() {
        List<Runnable> wrong = new ArrayList<>();
        wrong.add(() -> HapaxClient.builder());
        wrong.add(() -> HapaxClient.builder("ftp://x"));
        wrong.add(() -> HapaxClient.builder("http://u:secret@x"));
        wrong.add(() -> HapaxClient.builder("http://x").token("secret b"));
        wrong.add(() -> HapaxClient.builder("http://x").step(0, 1));
        wrong.add(() -> HapaxClient.builder("http://x").step(2, 1));
        wrong.add(() -> HapaxClient.builder("http://x").batch(HapaxClient.MAX_COUNT + 1));
        wrong.add(() -> HapaxClient.builder("http://x").timeout(Duration.ZERO));
        wrong.add(() -> HapaxClient.builder("http://x").callTimeout(Duration.ofHours(2)));
        for (Runnable make : wrong) {
            try {
                make.run();
            } catch (IllegalArgumentException e) {
                check(!e.getMessage().contains("secret"), "it shows what is secret: " + e.getMessage());
                continue;
            }
            throw new Failed("setting " + wrong.indexOf(make) + " is taken");
        }
        return null;
    }
}
