package id.hapax.client;

import java.util.List;
import java.util.Map;

/** Numbers that were taken, and how many of them are used. */
final class Stretch {
    final int count;
    final String receipt; // null: nothing can be handed back
    final double returnable;
    final boolean keeps; // false: for the call that asked
    int used;
    long began; // of System.nanoTime, when it became the current one
    private final long[] ids; // null: first and delta say which
    private final long first;
    private final long delta;
    private final long ends; // of System.nanoTime
    private final long endsWall; // of System.currentTimeMillis

    /** Reads an answer, and throws IllegalArgumentException if it has no numbers. */
    Stretch(Map<?, ?> answer, int asked, long sent, long sentWall) {
        double number = number(answer.get("count"));
        count = (int) number;
        double valid = number(answer.get("valid_for"));
        if (count != number || count < 1 || count > asked || !(valid >= 0)) {
            throw new IllegalArgumentException("a wrong count or valid_for");
        }
        if (answer.containsKey("first")) {
            ids = null;
            first = id(answer.get("first"));
            delta = id(answer.get("delta"));
            if (delta > (Long.MAX_VALUE - first) / count) {
                throw new IllegalArgumentException("a number of more than 63 bits");
            }
        } else {
            first = delta = 0;
            List<?> texts = texts(answer.get("ids"), count);
            ids = texts.stream().mapToLong(Stretch::id).toArray();
        }
        Object given = answer.get("receipt");
        receipt = given instanceof String && !given.equals("") ? (String) given : null;
        returnable = number(answer.get("returnable"));
        keeps = valid > 0;
        ends = sent + (long) (Math.min(valid, 1e9) * 1e9);
        endsWall = sentWall + (long) (Math.min(valid, 1e9) * 1e3);
    }

    static List<?> texts(Object field, int count) {
        if (!(field instanceof List) || ((List<?>) field).size() != count) {
            throw new IllegalArgumentException("other than " + count + " numbers");
        }
        return (List<?>) field;
    }

    private static double number(Object field) {
        return field instanceof Double ? (Double) field : field == null ? 0 : Double.NaN;
    }

    private static long id(Object text) {
        if (!(text instanceof String) || !((String) text).matches("[0-9]{1,19}") || Long.parseLong((String) text) == 0) {
            throw new IllegalArgumentException("no number: " + String.format("%.40s", text));
        }
        return Long.parseLong((String) text);
    }

    long id(int place) {
        return ids != null ? ids[place] : first + place * delta;
    }

    int left() {
        return count - used;
    }

    boolean over() {
        // The monotonic clock may stand still while a machine sleeps.
        return System.nanoTime() - ends >= 0 || System.currentTimeMillis() >= endsWall;
    }
}
