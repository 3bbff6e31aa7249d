package id.hapax.client;

import java.util.ArrayList;
import java.util.HashMap;
import java.util.List;
import java.util.Map;

/**
 * Reads JSON as far as servers send it: objects as {@link Map}, arrays as {@link List},
 * strings as {@link String}; numbers, which none of them matter here, as their text.
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
        json.blanks();
        if (json.at < text.length()) {
            throw json.wrong();
        }
        return value;
    }

    /** Returns a text in quotes. */
    static String quote(String s) {
        StringBuilder out = new StringBuilder("\"");
        for (int i = 0; i < s.length(); i++) {
            char c = s.charAt(i);
            if (c == '"' || c == '\\') {
                out.append('\\').append(c);
            } else if (c < ' ' || c > '~') {
                out.append(String.format("\\u%04x", (int) c));
            } else {
                out.append(c);
            }
        }
        return out.append('"').toString();
    }

    private IllegalArgumentException wrong() {
        return new IllegalArgumentException("no JSON at character " + at);
    }

    private void blanks() {
        while (at < text.length() && " \t\r\n".indexOf(text.charAt(at)) >= 0) {
            at++;
        }
    }

    /** Returns the next character that is no blank, without passing it. */
    private char peek() {
        blanks();
        if (at == text.length()) {
            throw wrong();
        }
        return text.charAt(at);
    }

    private void expect(char c) {
        if (peek() != c) {
            throw wrong();
        }
        at++;
    }

    private Object value(int depth) {
        if (depth > MAX_DEPTH) {
            throw wrong();
        }
        switch (peek()) {
            case '{':
                return object(depth);
            case '[':
                return array(depth);
            case '"':
                return string();
            default:
                return word();
        }
    }

    private Map<String, Object> object(int depth) {
        Map<String, Object> all = new HashMap<>();
        expect('{');
        if (peek() == '}') {
            at++;
            return all;
        }
        while (true) {
            String key = string();
            expect(':');
            all.put(key, value(depth + 1));
            if (peek() == '}') {
                at++;
                return all;
            }
            expect(',');
        }
    }

    private List<Object> array(int depth) {
        List<Object> all = new ArrayList<>();
        expect('[');
        if (peek() == ']') {
            at++;
            return all;
        }
        while (true) {
            all.add(value(depth + 1));
            if (peek() == ']') {
                at++;
                return all;
            }
            expect(',');
        }
    }

    private String string() {
        expect('"');
        StringBuilder out = new StringBuilder();
        while (at < text.length()) {
            char c = text.charAt(at++);
            if (c == '"') {
                return out.toString();
            }
            if (c != '\\') {
                out.append(c);
                continue;
            }
            if (at == text.length()) {
                break;
            }
            out.append(escaped(text.charAt(at++)));
        }
        throw wrong();
    }

    private char escaped(char c) {
        switch (c) {
            case '"':
            case '\\':
            case '/':
                return c;
            case 'b':
                return '\b';
            case 'f':
                return '\f';
            case 'n':
                return '\n';
            case 'r':
                return '\r';
            case 't':
                return '\t';
            case 'u':
                if (at + 4 <= text.length()) {
                    at += 4;
                    return (char) Integer.parseInt(text.substring(at - 4, at), 16);
                }
                throw wrong();
            default:
                throw wrong();
        }
    }

    /** Reads a number, true, false or null. */
    private String word() {
        int begin = at;
        while (at < text.length() && ",]} \t\r\n".indexOf(text.charAt(at)) < 0) {
            at++;
        }
        if (at == begin) {
            throw wrong();
        }
        return text.substring(begin, at);
    }
}
