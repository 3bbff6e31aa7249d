package id.hapax.hooks;

import java.io.BufferedReader;
import java.io.IOException;
import java.io.UncheckedIOException;
import java.net.InetAddress;
import java.net.ServerSocket;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.ArrayList;
import java.util.Comparator;
import java.util.List;
import java.util.stream.Stream;

/** A PostgreSQL or MariaDB of its own, in a fresh directory. */
final class Database implements AutoCloseable {
    private static final boolean ROOT = "root".equals(System.getProperty("user.name"));

    final String url;
    private final Path dir;
    private final Process process;

    static Database postgres() throws Exception {
        String programs;
        try (Stream<Path> all = Files.list(Path.of("/usr/lib/postgresql"))) {
            programs = all.sorted(Comparator.reverseOrder()).findFirst().orElseThrow() + "/bin/";
        }
        Path dir = Files.createTempDirectory("hapax");
        int port = port();
        List<String> as = new ArrayList<>();
        if (ROOT) { // it refuses to run as root
            run(List.of("chown", "postgres:postgres", dir.toString()));
            as.addAll(List.of("setpriv", "--reuid=postgres", "--regid=postgres", "--clear-groups"));
        }
        run(with(as, programs + "initdb", "-D", dir + "/data", "-A", "trust", "-U", "postgres", "--no-sync"));
        return new Database("jdbc:postgresql://127.0.0.1:" + port + "/postgres?user=postgres", dir, "ready to accept connections",
                with(as, programs + "postgres", "-D", dir + "/data", "-p", "" + port, "-h", "127.0.0.1", "-k", dir.toString(), "-c", "fsync=off"));
    }

    static Database mariadb() throws Exception {
        Path dir = Files.createTempDirectory("hapax");
        int port = port();
        List<String> user = ROOT ? List.of("--user=root") : List.of();
        run(with(with(List.of("mariadb-install-db", "--no-defaults"), "--datadir=" + dir + "/data", "--auth-root-authentication-method=normal"), user.toArray(new String[0])));
        return new Database("jdbc:mariadb://127.0.0.1:" + port + "/test?user=root", dir, "ready for connections",
                with(with(List.of("mariadbd", "--no-defaults"), user.toArray(new String[0])), "--datadir=" + dir + "/data", "--socket=" + dir + "/s", "--port=" + port, "--bind-address=127.0.0.1",
                        "--innodb-flush-log-at-trx-commit=0"));
    }

    private Database(String url, Path dir, String ready, List<String> command) throws IOException {
        this.url = url;
        this.dir = dir;
        process = new ProcessBuilder(command).directory(dir.getRoot().toFile()).redirectErrorStream(true).start();
        BufferedReader lines = process.inputReader();
        for (String line = lines.readLine(); ; line = lines.readLine()) {
            if (line == null) {
                throw new IOException("it does not start: " + command);
            }
            if (line.contains(ready)) {
                break;
            }
        }
        Thread rest = new Thread(() -> { // otherwise it stops when nobody reads
            try {
                lines.lines().forEach(line -> {});
            } catch (UncheckedIOException e) {
                return; // it was stopped
            }
        });
        rest.setDaemon(true);
        rest.start();
    }

    private static List<String> with(List<String> some, String... more) {
        List<String> all = new ArrayList<>(some);
        all.addAll(List.of(more));
        return all;
    }

    private static int port() throws IOException {
        try (ServerSocket s = new ServerSocket(0, 1, InetAddress.getLoopbackAddress())) {
            return s.getLocalPort();
        }
    }

    private static void run(List<String> command) throws Exception {
        Process p = new ProcessBuilder(command).directory(Path.of("/").toFile()).redirectErrorStream(true).start();
        String said = new String(p.getInputStream().readAllBytes());
        if (p.waitFor() != 0) {
            throw new IOException(command + ": " + said);
        }
    }

    @Override
    public void close() throws Exception {
        process.destroyForcibly(); // nobody needs the data
        process.waitFor();
        try (Stream<Path> all = Files.walk(dir)) {
            all.sorted(Comparator.reverseOrder()).forEach(file -> file.toFile().delete());
        }
    }
}
