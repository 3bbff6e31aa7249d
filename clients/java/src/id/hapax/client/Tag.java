package id.hapax.client;

import java.time.Duration;
import java.util.List;
import java.util.Map;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.ExecutionException;
import java.util.concurrent.ScheduledFuture;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.TimeoutException;
import java.util.stream.Collectors;
import java.util.stream.IntStream;

/** The numbers of a tag. Make it once or each time: it holds nothing. */
public final class Tag {
    private static final long GRACE = 1_000_000_000L; // nanoseconds, in which a fetch says why it failed

    private final HapaxClient client;
    private final String name;

    Tag(HapaxClient client, String name) {
        this.client = client;
        this.name = name;
    }

    /**
     * Issues a number, and waits for one if none is in hand.
     *
     * @return the number, which nobody else gets
     * @throws HapaxException if none came in time, or none will; an interrupted thread stays
     *     interrupted
     */
    public long next() {
        return take(1)[0];
    }

    /**
     * Issues several numbers, and waits until there are as many. If it fails, those that it had
     * by then are a gap.
     *
     * @param count how many, 1 to {@link HapaxClient#MAX_COUNT}
     * @return the numbers, which nobody else gets
     * @throws HapaxException as {@link #next}
     */
    public long[] take(int count) {
        return take(count, client.timeout);
    }

    /**
     * Issues several numbers, as {@link #take(int)}.
     *
     * @param count how many
     * @param timeout how long to wait, in place of the client's
     * @return the numbers
     * @throws HapaxException as {@link #next}
     */
    public long[] take(int count, Duration timeout) {
        return take(count, HapaxClient.check("timeout", timeout).toNanos());
    }

    private long[] take(int count, long nanos) {
        Line.Want want = client.want(count, nanos);
        while (true) {
            CompletableFuture<Void> fetch = client.line(name).pick(want);
            if (fetch == null) {
                return want.got;
            }
            boolean own = fetch == want.own;
            try {
                fetch.get(Math.max(0, want.until - System.nanoTime() + (own ? GRACE : 0)), TimeUnit.NANOSECONDS);
            } catch (TimeoutException e) {
                throw late(client.line(name));
            } catch (InterruptedException e) {
                throw HapaxException.interrupted(false);
            } catch (ExecutionException e) {
                HapaxException failed = (HapaxException) e.getCause();
                if (own || failed.last) {
                    throw failed.again();
                }
            }
        }
    }

    private HapaxException late(Line line) {
        HapaxException said = line.said;
        return said != null ? said.again() : HapaxException.unavailable("no number of " + Json.quote(name) + " came in time", null);
    }

    /**
     * Issues a number as {@link #next} does, without a thread that waits.
     *
     * @return the number that will come, or its {@link HapaxException}
     */
    public CompletableFuture<Long> nextAsync() {
        return takeAsync(1).thenApply(numbers -> numbers[0]);
    }

    /**
     * Issues several numbers as {@link #take(int)} does, without a thread that waits. What was
     * fetched for a call that is cancelled is left to the others.
     *
     * @param count how many
     * @return the numbers that will come, or their {@link HapaxException}
     */
    public CompletableFuture<long[]> takeAsync(int count) {
        return takeAsync(count, client.timeout);
    }

    /**
     * Issues several numbers, as {@link #takeAsync(int)}.
     *
     * @param count how many
     * @param timeout how long they may take, in place of the client's
     * @return the numbers that will come, or their {@link HapaxException}
     */
    public CompletableFuture<long[]> takeAsync(int count, Duration timeout) {
        return takeAsync(count, HapaxClient.check("timeout", timeout).toNanos());
    }

    private CompletableFuture<long[]> takeAsync(int count, long nanos) {
        CompletableFuture<long[]> result = new CompletableFuture<>();
        try {
            Line.Want want = client.want(count, nanos);
            Line line = client.line(name);
            for (long grace : new long[] {0, GRACE}) { // its own fetch says at the end why it failed
                ScheduledFuture<?> late = client.timer.schedule(() -> client.executor.submit(() -> (grace > 0 || want.own == null) && result.completeExceptionally(late(line))), nanos + grace, TimeUnit.NANOSECONDS);
                result.whenComplete((numbers, failed) -> late.cancel(false));
            }
            go(want, result);
        } catch (RuntimeException e) {
            result.completeExceptionally(e instanceof HapaxException ? e : HapaxException.closed());
        }
        return result;
    }

    private void go(Line.Want want, CompletableFuture<long[]> result) {
        if (result.isDone()) {
            return;
        }
        CompletableFuture<Void> fetch = client.line(name).pick(want);
        if (fetch == null) {
            result.complete(want.got);
            return;
        }
        // Apart from each other: what comes after a number is the caller's, and may wait.
        fetch.<Object>handleAsync((nothing, failed) -> {
            try {
                if (failed != null && (fetch == want.own || ((HapaxException) failed).last)) {
                    throw (HapaxException) failed;
                }
                go(want, result);
            } catch (RuntimeException e) {
                result.completeExceptionally(e);
            }
            return null;
        }, client.executor).exceptionally(e -> result.completeExceptionally(client.executor.isShutdown() ? HapaxException.closed() : HapaxException.unavailable(e.toString(), e)));
    }

    /**
     * Issues numbers with the texts that show them. None is kept for later.
     *
     * @param count how many, 1 to {@link HapaxClient#MAX_COUNT}
     * @return the codes, which nobody else gets
     * @throws HapaxException as {@link #next}
     */
    public List<Code> codes(int count) {
        long until = client.want(count, client.timeout).until;
        return client.line(name).persist(count, true, until, n -> client.servers.ask(
                HapaxClient.path(name) + "/take", "{\"count\":" + n + ",\"codes\":true}", until, (answer, sent, wall) -> codes(answer, n)));
    }

    private static List<Code> codes(Map<?, ?> answer, int asked) {
        Stretch stretch = new Stretch(answer, asked, 0, 0);
        List<?> texts = Stretch.texts(answer.get("codes"), stretch.count);
        Object period = answer.get("period");
        return IntStream.range(0, stretch.count).mapToObj(i -> new Code(stretch.id(i), String.valueOf(texts.get(i)), period == null ? "" : period.toString())).collect(Collectors.toList());
    }
}
