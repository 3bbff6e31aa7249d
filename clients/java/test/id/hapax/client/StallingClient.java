package id.hapax.client;

import java.util.concurrent.CompletableFuture;
import java.util.concurrent.ExecutionException;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.TimeoutException;

/** A broken client: its callers wait for each other while numbers are fetched, whether they need those or not. */
public final class StallingClient extends HapaxClient {
    public StallingClient(Builder b) {
        super(b);
    }

    @Override
    Line newLine(String tag) {
        return new Line(this, path(tag)) {
            @Override
            synchronized CompletableFuture<Void> pick(Want want) {
                CompletableFuture<Void> own = super.pick(want);
                CompletableFuture<Void> begun = fetch;
                try {
                    if (own == null && begun != null) {
                        begun.get(timeout, TimeUnit.NANOSECONDS);
                    }
                } catch (InterruptedException | ExecutionException | TimeoutException e) {
                    throw HapaxException.unavailable("it stalled", e);
                }
                return own;
            }
        };
    }
}
