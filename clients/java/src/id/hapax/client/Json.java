package id.hapax.client;

import java.util.ArrayList;
import java.util.HashMap;
import java.util.List;
import java.util.Map;

/**
 * Reads JSON: objects as {@link Map}, arrays as {@link List}, strings as {@link String}, numbers
 * as {@link Double}, true, false and null as themselves.
 */
final class Json {
    private static final int MAX_DEPTH = 32;

    private final String text;
    private int at;

    private Json(String text) {
        this.text = text;
    }

    /** Reads a text, which must be one JSON value. */
    static Object read(String text) {
        Json json = new Json(text);
        Object value = json.value(0);
        if (json.peek() != 0) {
            throw json.wrong();
        }
        return value;
    }

    /** Returns a text in quotes. */
    static String quote(String s) {
        StringBuilder out = new StringBuilder("\"");
        for (char c : s.toCharArray()) {
            out.append(c == '"' || c == '\\' || c < ' ' || c > '~' ? String.format("\\u%04x", (int) c) : c);
        }
        return out.append('"').toString();
    }

    private IllegalArgumentException wrong() {
        return new IllegalArgumentException("no JSON at character " + at);
    }

    /** Returns the next character that is no blank, without passing it; 0 at the end. */
    private char peek() {
        while (at < text.length() && " \t\r\n".indexOf(text.charAt(at)) >= 0) {
            at++;
        }
        return at < text.length() ? text.charAt(at) : 0;
    }

    private boolean passes(char c) {
        boolean there = peek() == c;
        at += there ? 1 : 0;
        return there;
    }

    private void expect(char c) {
        if (!passes(c)) {
            throw wrong();
        }
    }

    private Object value(int depth) {
        if (depth > MAX_DEPTH) {
            throw wrong();
        }
        if (passes('{')) {
            Map<String, Object> all = new HashMap<>();
            for (boolean more = !passes('}'); more; more = !end('}')) {
                String key = string();
                expect(':');
                all.put(key, value(depth + 1));
            }
            return all;
        }
        if (passes('[')) {
            List<Object> all = new ArrayList<>();
            for (boolean more = !passes(']'); more; more = !end(']')) {
                all.add(value(depth + 1));
            }
            return all;
        }
        return peek() == '"' ? string() : word();
    }

    private boolean end(char closing) {
        boolean ends = passes(closing);
        if (!ends) {
            expect(',');
        }
        return ends;
    }

    private String string() {
        expect('"');
        StringBuilder out = new StringBuilder();
        while (at < text.length()) {
            char c = text.charAt(at++);
            if (c == '"') {
                return out.toString();
            }
            if (c == '\\' && at < text.length()) {
                c = text.charAt(at++);
                int known = "bfnrt".indexOf(c);
                if (known >= 0) {
                    c = "\b\f\n\r\t".charAt(known);
                } else if (c == 'u' && at + 4 <= text.length()) {
                    c = (char) Integer.parseInt(text.substring(at, at += 4), 16);
                } else if ("\"\\/".indexOf(c) < 0) {
                    throw wrong();
                }
            }
            out.append(c);
        }
        throw wrong();
    }

    private Object word() {
        int begin = at;
        while (at < text.length() && ",]} \t\r\n".indexOf(text.charAt(at)) < 0) {
            at++;
        }
        String word = text.substring(begin, at);
        if (word.equals("true") || word.equals("false")) {
            return word.equals("true");
        }
        if (!word.equals("null") && !word.matches("-?[0-9][-+.0-9eE]{0,30}")) {
            throw wrong();
        }
        return word.equals("null") ? null : Double.valueOf(word);
    }
}
