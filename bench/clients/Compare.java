import id.hapax.client.HapaxClient;
import id.hapax.client.Tag;
import java.io.IOException;
import java.io.InputStream;
import java.net.Socket;
import java.net.URI;
import java.nio.charset.StandardCharsets;
import java.util.Arrays;

/** What compare measures, in Java: Compare HTTP-URL REDIS-PORT SECONDS. */
public final class Compare {
    private static final int KEPT = 1 << 20; // times of the latest calls

    interface Call {
        void run() throws IOException;
    }

    private static double seconds;

    private static void measure(String name, int numbers, Call call) throws IOException {
        for (long end = System.nanoTime() + (long) (seconds / 4 * 1e9); System.nanoTime() < end;) { // warm
            call.run();
        }
        long[] times = new long[KEPT];
        long calls = 0;
        long began = System.nanoTime();
        long last = began;
        while (last - began < seconds * 1e9) {
            call.run();
            long now = System.nanoTime();
            times[(int) (calls++ % KEPT)] = now - last;
            last = now;
        }
        times = Arrays.copyOf(times, (int) Math.min(calls, KEPT));
        Arrays.sort(times);
        System.out.println(name + " " + calls * numbers * 1e9 / (last - began) + " " + times[times.length * 99 / 100] / 1e3);
    }

    private static Socket connected(int port) throws IOException {
        Socket s = new Socket("127.0.0.1", port);
        s.setTcpNoDelay(true);
        return s;
    }

    private static void overHttp(Socket http, byte[] request, byte[] buffer) throws IOException {
        http.getOutputStream().write(request);
        InputStream in = http.getInputStream();
        int size = 0;
        for (int whole = Integer.MAX_VALUE; size < whole;) {
            size += in.read(buffer, size, buffer.length - size);
            String text = new String(buffer, 0, size, StandardCharsets.ISO_8859_1);
            int head = text.indexOf("\r\n\r\n");
            if (head >= 0) {
                String rest = text.substring(text.toLowerCase().indexOf("content-length:") + 15);
                whole = head + 4 + Integer.parseInt(rest.substring(0, rest.indexOf('\r')).trim());
            }
        }
    }

    private static void overRedis(Socket redis, byte[] request, int replies, byte[] buffer) throws IOException {
        redis.getOutputStream().write(request);
        for (int left = replies; left > 0;) {
            int size = redis.getInputStream().read(buffer);
            for (int i = 0; i < size; i++) {
                left -= buffer[i] == '\n' ? 1 : 0;
            }
        }
    }

    public static void main(String[] args) throws IOException {
        seconds = Double.parseDouble(args[2]);
        try (HapaxClient client = HapaxClient.builder(args[0]).build()) {
            Tag tag = client.tag("bench");
            measure("next", 1, tag::next);
            measure("take", 100, () -> tag.take(100));
        }
        byte[] buffer = new byte[1 << 16];
        byte[] request = "POST /v1/tags/bench/ids HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Length: 0\r\n\r\n".getBytes(StandardCharsets.US_ASCII);
        String incr = "*2\r\n$4\r\nINCR\r\n$5\r\nbench\r\n";
        byte[] one = incr.getBytes(StandardCharsets.US_ASCII);
        byte[] many = incr.repeat(100).getBytes(StandardCharsets.US_ASCII);
        try (Socket http = connected(URI.create(args[0]).getPort()); Socket redis = connected(Integer.parseInt(args[1]))) {
            measure("http", 1, () -> overHttp(http, request, buffer));
            measure("redis", 1, () -> overRedis(redis, one, 1, buffer));
            measure("pipeline", 100, () -> overRedis(redis, many, 100, buffer));
        }
    }

    private Compare() {}
}
