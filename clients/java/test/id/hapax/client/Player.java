package id.hapax.client;

import id.hapax.client.TestServer.Failed;
import java.io.IOException;
import java.nio.charset.StandardCharsets;
import java.nio.file.Files;
import java.nio.file.Path;
import java.time.Duration;
import java.util.ArrayList;
import java.util.HashMap;
import java.util.HashSet;
import java.util.List;
import java.util.Map;
import java.util.Set;
import java.util.function.Function;

/** Plays the client's part of a transcript. */
final class Player {
    private final TestServer server;
    private final Function<HapaxClient.Builder, HapaxClient> make;
    private final HapaxClient client;
    private final HapaxClient.Builder builder;
    private final Set<String> seen = new HashSet<>();

    /** Plays a transcript, or throws Failed. */
    static void play(Path file, Function<HapaxClient.Builder, HapaxClient> make) throws Exception {
        Map<?, ?> script = (Map<?, ?>) Json.read(new String(Files.readAllBytes(file), StandardCharsets.UTF_8));
        try (TestServer server = new TestServer(file)) {
            Player player = new Player(server, (Map<?, ?>) script.get("client"), make);
            List<?> steps = (List<?>) script.get("steps");
            for (Object step : steps) {
                try {
                    player.step((Map<?, ?>) step);
                } catch (Failed e) {
                    throw new Failed("step " + (steps.indexOf(step) + 1) + ", " + step + ": " + e.getMessage());
                }
            }
            server.ask("/check", null);
        }
    }

    private Player(TestServer server, Map<?, ?> options, Function<HapaxClient.Builder, HapaxClient> make) {
        this.server = server;
        this.make = make;
        builder = HapaxClient.builder(server.servers.toArray(new String[0]));
        if (options != null) {
            builder.step(number(options, "min_step", 10), number(options, "max_step", 100_000))
                    .ahead(!Boolean.FALSE.equals(options.get("ahead")))
                    .timeout(Duration.ofMillis(number(options, "deadline_ms", 5000)))
                    .callTimeout(Duration.ofMillis(number(options, "call_timeout_ms", 3000)));
            if (options.get("token") != null) {
                builder.token((String) options.get("token"));
            }
        }
        client = make.apply(builder);
    }

    private static int number(Map<?, ?> fields, String name, int otherwise) {
        Object value = fields.get(name);
        return value == null ? otherwise : ((Double) value).intValue();
    }

    private void step(Map<?, ?> step) throws IOException, InterruptedException {
        String tag = (String) step.get("tag");
        switch ((String) step.get("do")) {
            case "sleep":
                Thread.sleep(number(step, "ms", 0));
                break;
            case "requests":
                server.ask("/requests?done=" + number(step, "done", 0), null);
                break;
            case "server":
                server.ask("/do", step.get("fault"));
                break;
            case "close":
                client.close();
                break;
            case "fork":
                int times = number(step, "times", 1);
                HapaxClient copy = copied();
                fresh(tag, next(copy, tag, times));
                fresh(tag, next(client, tag, times));
                break;
            default:
                call(step, tag);
        }
    }

    private void call(Map<?, ?> step, String tag) {
        List<String> got;
        try {
            int count = number(step, "count", 1);
            switch ((String) step.get("do")) {
                case "next":
                    got = fresh(tag, next(client, tag, number(step, "times", 1)));
                    break;
                case "take":
                    got = fresh(tag, texts(client.tag(tag).take(count)));
                    break;
                case "codes":
                    got = texts(client.tag(tag).codes(count));
                    break;
                default:
                    throw new Failed("what is that?");
            }
        } catch (HapaxException e) {
            if (!e.code().equals(step.get("error"))) {
                throw new Failed(e.code() + ": " + e.getMessage());
            }
            return;
        }
        if (step.get("error") != null || step.get("want") != null && !step.get("want").equals(got)) {
            throw new Failed("got " + got);
        }
    }

    private static List<String> next(HapaxClient client, String tag, int times) {
        List<String> got = new ArrayList<>();
        for (int i = 0; i < times; i++) {
            got.add(String.valueOf(client.tag(tag).next()));
        }
        return got;
    }

    private static List<String> texts(long[] numbers) {
        List<String> texts = new ArrayList<>();
        for (long n : numbers) {
            texts.add(String.valueOf(n));
        }
        return texts;
    }

    private static List<String> texts(List<Code> codes) {
        List<String> texts = new ArrayList<>();
        for (Code code : codes) {
            texts.add(code.text());
        }
        return texts;
    }

    private List<String> fresh(String tag, List<String> numbers) {
        for (String n : numbers) {
            if (!seen.add(tag + " " + n)) {
                throw new Failed(n + " came twice");
            }
        }
        return numbers;
    }

    /**
     * Copies the client as a checkpoint does, which is what Java has in place of fork: the
     * client is told, and then all that it has in memory is there twice.
     */
    private HapaxClient copied() {
        client.handBack();
        HapaxClient copy = make.apply(builder);
        client.lines.forEach((tag, line) -> {
            Line twin = copy.line(tag);
            twin.current = copied(line.current);
            twin.spare = copied(line.spare);
        });
        return copy;
    }

    private static Stretch copied(Stretch stretch) {
        if (stretch == null || stretch.left() == 0) {
            return null;
        }
        Map<String, Object> answer = new HashMap<>();
        answer.put("count", (double) stretch.left());
        answer.put("valid_for", 3600.0);
        List<String> ids = new ArrayList<>();
        for (int i = stretch.used; i < stretch.count; i++) {
            ids.add(String.valueOf(stretch.id(i)));
        }
        answer.put("ids", ids);
        return new Stretch(answer, ids.size(), System.nanoTime(), System.currentTimeMillis());
    }
}
