package io.changeglot.kernel;

import java.math.BigDecimal;
import java.math.BigInteger;
import java.nio.charset.StandardCharsets;
import java.time.DateTimeException;
import java.time.LocalDateTime;
import java.time.ZoneId;
import java.time.ZoneOffset;
import java.time.ZonedDateTime;
import java.util.ArrayList;
import java.util.Base64;
import java.util.List;
import java.util.Locale;
import org.apache.spark.unsafe.types.UTF8String;

/**
 * How a value of some type is spelled in JSON, against its one canonical text: binary is Base64, a moment is
 * `2024-01-02 03:04:05.5Z`, a truth `true` or `false`, an enum its label. A value that is not of its spelling is left
 * as it is, and every spelling reads back what it writes.
 */
final class Spelling {
  enum Rule {
    TEXT, NUMBER, INTEGER, BOOLEAN, ZERO_ONE, TRUE_FALSE, T_F, BASE64, HEX, LATIN1, BITS, BIT_TEXT, EPOCH, MILLIS, EPOCH_OR_MILLIS, MILLIS_OR_EPOCH, OFFSET, LOCAL, ENUM, SET, JSON
  }

  final Rule rule;
  private final List<String> labels;
  private final ZoneId zone;

  /** A rule's name, of LOCAL with its zone: `LOCAL Asia/Shanghai`. */
  Spelling(String rule, String type) {
    int cut = rule.indexOf(' ');
    this.rule = Rule.valueOf(cut < 0 ? rule : rule.substring(0, cut));
    zone = cut < 0 ? ZoneOffset.UTC : ZoneId.of(rule.substring(cut + 1));
    labels = this.rule == Rule.ENUM || this.rule == Rule.SET ? labels(type) : List.of();
  }

  /** False where reading never changes a text. */
  boolean reads() {
    return rule != Rule.TEXT && rule != Rule.NUMBER && rule != Rule.JSON;
  }

  private static final UTF8String TRUE = UTF8String.fromString("true"), FALSE = UTF8String.fromString("false");

  /** The canonical text of a value that came as `text` in a JSON value of `kind`. */
  UTF8String read(UTF8String text, char kind) {
    boolean number = kind == 'i' || kind == 'n';
    switch (rule) {
      case BOOLEAN: case ZERO_ONE: case TRUE_FALSE: case T_F: {
        String s = text.toString();
        return s.equals("1") || s.equals("t") ? TRUE : s.equals("0") || s.equals("f") ? FALSE : text;
      }
      case BASE64:
        return number ? base64(unsigned(text), text) : text;
      case BITS:
        return base64(unsigned(text), text);
      case BIT_TEXT:
        return base64(bits(text), text);
      case HEX:
        return text.numBytes() >= 2 && text.getByte(0) == '\\' && text.getByte(1) == 'x' ? base64(unhex(text), text) : text;
      case LATIN1:
        return base64(latin1(text), text);
      case EPOCH:
        return moment(text, 9);
      case MILLIS:
        return number ? moment(text, 6) : text;
      case EPOCH_OR_MILLIS: case MILLIS_OR_EPOCH:
        return moment(text, number ? 6 : 9);
      case OFFSET:
        return text.endsWith(PLUS_00) ? UTF8String.concat(text.substringSQL(1, text.numChars() - 3), Z) : text;
      case INTEGER:
        if (!text.toString().matches("[+-]?[0-9]+")) throw new Scanner.Bad("expected a whole number");
        return text;
      case LOCAL:
        return fromLocal(text);
      case ENUM: {
        int i = index(text, labels.size());
        return i > 0 ? UTF8String.fromString(labels.get(i - 1)) : i == 0 && number(text) ? UTF8String.EMPTY_UTF8 : text;
      }
      case SET:
        return set(text);
      default:
        return text;
    }
  }

  /** Adds the spelled value to the image and gives its JSON kind. */
  char write(UTF8String text, Image out) {
    UTF8String spelled = text;
    char kind = 's';
    switch (rule) {
      case NUMBER: case INTEGER:
        kind = !number(text) ? 's' : whole(text) ? 'i' : 'n';
        break;
      case JSON: {
        byte[] b = text.getBytes();
        kind = b.length > 0 && (b[0] == '{' || b[0] == '[') && new Scanner().holds(b, 0, b.length) ? 'o' : 's';
        break;
      }
      case BOOLEAN:
        kind = text.equals(TRUE) || text.equals(FALSE) ? 'b' : 's';
        break;
      case ZERO_ONE:
        if (text.equals(TRUE) || text.equals(FALSE)) {
          spelled = UTF8String.fromString(text.equals(TRUE) ? "1" : "0");
          kind = 'i';
        }
        break;
      case T_F:
        if (text.equals(TRUE) || text.equals(FALSE)) spelled = UTF8String.fromString(text.equals(TRUE) ? "t" : "f");
        break;
      case BITS: {
        byte[] b = unbase64(text);
        if (b != null) spelled = UTF8String.fromString(new BigInteger(1, b).toString());
        break;
      }
      case BIT_TEXT: {
        byte[] b = unbase64(text);
        if (b != null) spelled = UTF8String.fromString(digits(b));
        break;
      }
      case HEX: {
        byte[] b = unbase64(text);
        if (b != null) spelled = hex(b);
        break;
      }
      case LATIN1: {
        byte[] b = unbase64(text);
        if (b != null) spelled = UTF8String.fromString(new String(b, StandardCharsets.ISO_8859_1));
        break;
      }
      case EPOCH: case EPOCH_OR_MILLIS: {
        String s = epoch(text);
        if (s != null) spelled = UTF8String.fromString(s);
        break;
      }
      case MILLIS: case MILLIS_OR_EPOCH: {
        String s = millis(text);
        if (s != null) {
          spelled = UTF8String.fromString(s);
          kind = 'n';
        }
        break;
      }
      case OFFSET:
        if (instant(text) != null) spelled = UTF8String.concat(text.substringSQL(1, text.numChars() - 1), PLUS_00);
        break;
      case LOCAL:
        spelled = toLocal(text);
        break;
      case ENUM: {
        int i = labels.indexOf(text.toString());
        if (i >= 0) spelled = UTF8String.fromString(Integer.toString(i + 1));
        else if (text.numBytes() == 0) spelled = UTF8String.fromString("0");
        break;
      }
      case SET: {
        BigInteger mask = mask(text.toString());
        if (mask != null) spelled = UTF8String.fromString(mask.toString());
        break;
      }
      default:
    }
    out.add(spelled);
    return kind;
  }

  static boolean number(UTF8String text) {
    int n = text.numBytes();
    if (n == 0) return false;
    byte first = text.getByte(0);
    if (first != '-' && (first < '0' || first > '9')) return false;
    if (n < 19 && first > '0') {
      int i = 1;
      while (i < n && text.getByte(i) >= '0' && text.getByte(i) <= '9') i++;
      if (i == n) return true;
    }
    byte[] b = text.getBytes();
    return new Scanner().holds(b, 0, b.length);
  }

  private static boolean whole(UTF8String text) {
    for (byte c : text.getBytes()) if (c == '.' || (c | 0x20) == 'e') return false;
    return true;
  }

  // Binary

  private static UTF8String base64(byte[] bytes, UTF8String otherwise) {
    return bytes == null ? otherwise : UTF8String.fromBytes(Base64.getEncoder().encode(bytes));
  }

  private static byte[] unbase64(UTF8String text) {
    byte[] b = text.getBytes();
    if (b.length % 4 != 0) return null;
    try {
      byte[] plain = Base64.getDecoder().decode(b);
      return java.util.Arrays.equals(Base64.getEncoder().encode(plain), b) ? plain : null;
    } catch (IllegalArgumentException e) {
      return null;
    }
  }

  private static byte[] unsigned(UTF8String text) {
    byte[] digits = text.getBytes();
    if (digits.length == 0 || digits.length > 20) return null;
    for (byte c : digits) if (c < '0' || c > '9') return null;
    byte[] b = new BigInteger(text.toString()).toByteArray();
    return b.length > 1 && b[0] == 0 ? java.util.Arrays.copyOfRange(b, 1, b.length) : b;
  }

  /** `0101` as bytes, the highest first; null if it is no such text. */
  private static byte[] bits(UTF8String text) {
    int n = text.numBytes();
    byte[] out = new byte[(n + 7) / 8];
    for (int i = 0; i < n; i++) {
      int digit = text.getByte(i) - '0';
      if (digit != 0 && digit != 1) return null;
      int place = n - 1 - i;
      out[out.length - 1 - place / 8] |= (byte) (digit << place % 8);
    }
    return n == 0 ? null : out;
  }

  private static String digits(byte[] bytes) {
    StringBuilder s = new StringBuilder();
    for (byte b : bytes) for (int i = 7; i >= 0; i--) s.append(b >> i & 1);
    return s.toString();
  }

  private static byte[] unhex(UTF8String text) {
    byte[] b = text.getBytes();
    if (b.length % 2 != 0) return null;
    byte[] out = new byte[b.length / 2 - 1];
    for (int i = 0; i < out.length; i++) {
      int high = Character.digit(b[2 * i + 2], 16), low = Character.digit(b[2 * i + 3], 16);
      if (high < 0 || low < 0) return null;
      out[i] = (byte) (high << 4 | low);
    }
    return out;
  }

  private static UTF8String hex(byte[] bytes) {
    StringBuilder s = new StringBuilder("\\x");
    for (byte b : bytes) s.append(Character.forDigit(b >> 4 & 15, 16)).append(Character.forDigit(b & 15, 16));
    return UTF8String.fromString(s.toString());
  }

  private static byte[] latin1(UTF8String text) {
    String s = text.toString();
    for (int i = 0; i < s.length(); i++) {
      if (s.charAt(i) > 0xff) throw new Scanner.Bad("binary as ISO-8859-1 text has the character U+" + String.format(Locale.ROOT, "%04X", s.codePointAt(i)));
    }
    return s.getBytes(StandardCharsets.ISO_8859_1);
  }

  // Moments

  private static final UTF8String PLUS_00 = UTF8String.fromString("+00"), Z = UTF8String.fromString("Z");
  private static final BigInteger BILLION = BigInteger.valueOf(1_000_000_000L);
  private static final long FIRST = -62135596800L, LAST = 253402300799L;

  /** A number of seconds (places 9) or milliseconds (places 6), with a fraction, as a moment; else the text itself. */
  private static UTF8String moment(UTF8String text, int places) {
    String s = text.toString();
    if (s.length() > 40 || !s.matches("-?[0-9]{1,18}([.][0-9]{1,18})?")) return text;
    BigDecimal value = new BigDecimal(s);
    int dot = s.indexOf('.');
    BigInteger nanos;
    if (places == 6 && dot >= 0 && s.length() - dot == 10 && value.signum() >= 0) {
      // The document's "13-digit timestamp and 9-digit nanosecond": the fraction is the nanosecond of the second, if the
      // milliseconds before it agree; else the number is a plain decimal.
      long whole = Long.parseLong(s.substring(0, dot)), fraction = Long.parseLong(s.substring(dot + 1));
      boolean agrees = whole % 1000 == 0 || whole % 1000 == fraction / 1_000_000;
      nanos = agrees ? BigInteger.valueOf(whole / 1000).multiply(BILLION).add(BigInteger.valueOf(fraction)) : scaled(value, 6);
    } else {
      nanos = scaled(value, places);
    }
    if (nanos == null) return text;
    BigInteger[] parts = nanos.divideAndRemainder(BILLION);
    if (parts[1].signum() < 0) {
      parts[0] = parts[0].subtract(BigInteger.ONE);
      parts[1] = parts[1].add(BILLION);
    }
    if (parts[0].bitLength() > 62 || parts[0].longValue() < FIRST || parts[0].longValue() > LAST) return text;
    LocalDateTime at = LocalDateTime.ofEpochSecond(parts[0].longValue(), 0, ZoneOffset.UTC);
    StringBuilder out = new StringBuilder(at.toLocalDate().toString()).append(' ');
    out.append(String.format(Locale.ROOT, "%02d:%02d:%02d", at.getHour(), at.getMinute(), at.getSecond()));
    if (parts[1].signum() != 0) {
      String fraction = String.format(Locale.ROOT, "%09d", parts[1].intValue());
      int n = 9;
      while (fraction.charAt(n - 1) == '0') n--;
      out.append('.').append(fraction, 0, n);
    }
    return UTF8String.fromString(out.append('Z').toString());
  }

  private static BigInteger scaled(BigDecimal value, int places) {
    try {
      return value.movePointRight(places).toBigIntegerExact();
    } catch (ArithmeticException e) {
      return null;
    }
  }

  /** Nanoseconds since 1970 of a canonical moment, or null. */
  private static BigInteger instant(UTF8String text) {
    String s = text.toString();
    if (!s.matches(WALL + "Z")) return null;
    try {
      LocalDateTime at = LocalDateTime.parse(s.substring(0, s.length() - 1).replace(' ', 'T'));
      return BigInteger.valueOf(at.toEpochSecond(ZoneOffset.UTC)).multiply(BILLION).add(BigInteger.valueOf(at.getNano()));
    } catch (DateTimeException e) {
      return null;
    }
  }

  private static final String WALL = "[0-9]{4}-[0-9]{2}-[0-9]{2} [0-9]{2}:[0-9]{2}:[0-9]{2}([.][0-9]{1,9})?";

  /** A wall clock's text in the zone as a moment, if the clock shows it exactly once. */
  private UTF8String fromLocal(UTF8String text) {
    String s = text.toString();
    if (!s.matches(WALL)) return text;
    try {
      LocalDateTime at = LocalDateTime.parse(s.replace(' ', 'T'));
      if (zone.getRules().getValidOffsets(at).size() != 1) return text;
      return moved(s, at.atZone(zone).withZoneSameInstant(ZoneOffset.UTC), "Z");
    } catch (DateTimeException e) {
      return text;
    }
  }

  private UTF8String toLocal(UTF8String text) {
    if (instant(text) == null) return text;
    String s = text.toString();
    ZonedDateTime at = LocalDateTime.parse(s.substring(0, s.length() - 1).replace(' ', 'T')).atZone(ZoneOffset.UTC)
        .withZoneSameInstant(zone);
    return zone.getRules().getValidOffsets(at.toLocalDateTime()).size() == 1 ? moved(s.substring(0, s.length() - 1), at, "") : text;
  }

  /** The date and time of `at` with the fraction as it was written. */
  private static UTF8String moved(String wall, ZonedDateTime at, String suffix) {
    String clock = String.format(Locale.ROOT, "%s %02d:%02d:%02d", at.toLocalDate(), at.getHour(), at.getMinute(), at.getSecond());
    return UTF8String.fromString(clock + wall.substring(19) + suffix);
  }

  private static String epoch(UTF8String text) {
    BigInteger nanos = instant(text);
    return nanos == null ? null : plain(new BigDecimal(nanos, 9));
  }

  /** Milliseconds; with a finer part the whole second's milliseconds and the nanosecond, as the document writes it. */
  private static String millis(UTF8String text) {
    BigInteger nanos = instant(text);
    if (nanos == null) return null;
    BigInteger[] ms = nanos.divideAndRemainder(BigInteger.valueOf(1_000_000));
    if (ms[1].signum() == 0) return ms[0].toString();
    if (nanos.signum() < 0) return plain(new BigDecimal(nanos, 6));
    BigInteger[] seconds = nanos.divideAndRemainder(BILLION);
    return seconds[0] + "000." + String.format(Locale.ROOT, "%09d", seconds[1].intValue());
  }

  private static String plain(BigDecimal value) {
    return value.signum() == 0 ? "0" : value.stripTrailingZeros().toPlainString();
  }

  // Enums and sets

  /** The labels in `enum('a','it''s')`. */
  private static List<String> labels(String type) {
    List<String> out = new ArrayList<>();
    int open = type.indexOf('(');
    StringBuilder label = null;
    for (int i = open + 1; open >= 0 && i < type.length(); i++) {
      char c = type.charAt(i);
      boolean quote = c == '\'';
      if (label == null) {
        if (quote) label = new StringBuilder();
      } else if (quote && i + 1 < type.length() && type.charAt(i + 1) == '\'') {
        label.append(c);
        i++;
      } else if (quote) {
        out.add(label.toString());
        label = null;
      } else {
        label.append(c);
      }
    }
    return out;
  }

  private static int index(UTF8String text, int most) {
    byte[] b = text.getBytes();
    if (b.length == 0 || b.length > 6) return -1;
    int v = 0;
    for (byte c : b) {
      if (c < '0' || c > '9') return -1;
      v = 10 * v + c - '0';
    }
    return v <= most ? v : -1;
  }

  private UTF8String set(UTF8String text) {
    String s = text.toString();
    if (labels.isEmpty() || !s.matches("[0-9]{1,20}")) return text;
    BigInteger mask = new BigInteger(s);
    if (mask.bitLength() > labels.size()) return text;
    StringBuilder out = new StringBuilder();
    for (int i = 0; i < labels.size(); i++) {
      if (mask.testBit(i)) out.append(out.length() > 0 ? "," : "").append(labels.get(i));
    }
    return UTF8String.fromString(out.toString());
  }

  private BigInteger mask(String text) {
    if (labels.isEmpty()) return null;
    BigInteger mask = BigInteger.ZERO;
    if (text.isEmpty()) return mask;
    for (String label : text.split(",", -1)) {
      int i = labels.indexOf(label);
      if (i < 0) return null;
      mask = mask.setBit(i);
    }
    return mask;
  }
}
