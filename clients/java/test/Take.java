import id.hapax.client.HapaxClient;
import id.hapax.client.HapaxException;
import id.hapax.client.IDGen;
import id.hapax.client.Result;
import id.hapax.client.Status;
import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.io.PrintStream;
import java.nio.charset.StandardCharsets;
import java.nio.file.Path;
import java.time.Duration;
import java.util.HashMap;
import java.util.Map;
import java.util.logging.Level;
import java.util.logging.Logger;

/**
 * Takes numbers as each line of its input says, and prints them, one a line, with a line "." at
 * the end. A number that did not come is printed as "! CODE REASON SERVER'S-CODE".
 */
final class Take {
    private static final int PRINTED_AT_ONCE = 500;
    private static final PrintStream OUT = new PrintStream(System.out, false, StandardCharsets.UTF_8);

    private static final Logger LOG = Logger.getLogger("id.hapax.client"); // kept: the settings of one that nobody has are lost

    public static void main(String[] args) throws Exception {
        LOG.setLevel(Level.OFF);
        BufferedReader in = new BufferedReader(new InputStreamReader(System.in, StandardCharsets.UTF_8));
        for (String line = in.readLine(); line != null; line = in.readLine()) {
            Map<String, String> o = new HashMap<>();
            for (String part : line.split(" ")) {
                int at = part.indexOf('=');
                o.put(part.substring(0, at), part.substring(at + 1));
            }
            HapaxClient.Builder b = HapaxClient.builder(o.get("at").split(","))
                    .batch(Integer.parseInt(o.getOrDefault("batch", "1000")))
                    .timeout(Duration.ofMillis(Long.parseLong(o.get("timeout"))))
                    .callTimeout(Duration.ofMillis(Long.parseLong(o.getOrDefault("call", o.get("timeout")))));
            if (o.containsKey("token")) {
                b.token(o.get("token"));
            }
            if (o.containsKey("ca")) {
                b.ca(Path.of(o.get("ca")));
            }
            try (HapaxClient client = b.build()) {
                if (!client.init() && !o.containsKey("down")) {
                    say("! no server answers");
                }
                run(client, o.get("tag"), Integer.parseInt(o.get("threads")), Integer.parseInt(o.get("count")));
            }
            say(".");
        }
    }

    private static void run(HapaxClient client, String tag, int threads, int count) throws InterruptedException {
        Thread[] all = new Thread[threads];
        for (int i = 0; i < threads; i++) {
            all[i] = new Thread(() -> take(client, client, tag, count / threads));
            all[i].start();
        }
        for (Thread t : all) {
            t.join();
        }
    }

    /** Asks in both ways that there are. */
    private static void take(HapaxClient client, IDGen gen, String tag, int count) {
        StringBuilder text = new StringBuilder();
        for (int i = 0; i < count; i++) {
            if (i % PRINTED_AT_ONCE == PRINTED_AT_ONCE - 1) {
                say(text.substring(0, text.length() - 1));
                text.setLength(0);
            }
            if (i == 0 && count > 2) { // several with one call
                try {
                    for (long id : client.next(tag, 2)) {
                        text.append(id).append('\n');
                    }
                    i++;
                    continue;
                } catch (HapaxException e) {
                    // Those below fail, too, and say why.
                }
            }
            Result result = gen.get(tag);
            if (!result.toString().equals("Result{id=" + result.getId() + ", status=" + result.getStatus() + "}")) {
                say("! the text of a result is " + result);
            }
            if (result.getStatus() == Status.SUCCESS) {
                text.append(result.getId()).append('\n');
                continue;
            }
            try {
                text.append(client.next(tag)).append('\n');
                text.append("! ").append(result.getId()).append('\n');
            } catch (HapaxException e) {
                text.append("! ").append(result.getId()).append(' ').append(e.reason()).append(' ').append(e.code()).append('\n');
                say(text + e.getMessage().replaceAll("(?m)^", "# "));
                return;
            }
        }
        if (text.length() > 0) {
            say(text.substring(0, text.length() - 1));
        }
    }

    private static synchronized void say(String text) {
        OUT.println(text);
        OUT.flush();
    }
}
