// Methods.java: the methods of a class of Jedis, arguments for them, and their replies as text.
package lockmigrate.holders.operations;

import java.lang.reflect.Array;
import java.lang.reflect.Constructor;
import java.lang.reflect.Field;
import java.lang.reflect.GenericArrayType;
import java.lang.reflect.InvocationTargetException;
import java.lang.reflect.Method;
import java.lang.reflect.Modifier;
import java.lang.reflect.ParameterizedType;
import java.lang.reflect.Type;
import java.nio.charset.StandardCharsets;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.Collection;
import java.util.Comparator;
import java.util.LinkedHashMap;
import java.util.LinkedHashSet;
import java.util.List;
import java.util.Map;
import java.util.Random;
import java.util.Set;
import java.util.TreeMap;
import java.util.concurrent.ConcurrentHashMap;
import java.util.stream.Collectors;

final class Methods {
    private static final String[] WORDS = {"a", "b", "1", "2", "0", "f", "15", "-inf", "+inf", "(1", "[a", "no number", "\u00e9\r\n\u0000"};
    private static final long[] NUMBERS = {0, 1, 2, -1, 5, 3};
    private static final long[] LONG_AFTER_OR_OVER = {0, -1, 100_000, 200_000}; // a key that ends meanwhile depends on when it is looked at
    private static final double[] FRACTIONS = {0, 1.5, -2, 100, 13.361389, 38.115556};

    private static long[] numbers = NUMBERS;
    private static final Map<String, List<Method>> KNOWN = new ConcurrentHashMap<>();

    private Methods() {
    }

    /** The methods of a class that send a command, in the order of their signatures: with reflection they come in any. */
    static List<Method> of(Class<?> type, Class<?> reply) {
        return KNOWN.computeIfAbsent(type.getName() + reply, name -> list(type, reply));
    }

    private static List<Method> list(Class<?> type, Class<?> reply) {
        Map<String, Method> all = new TreeMap<>();
        for (Method m : type.getMethods()) {
            boolean asked = reply == null ? m.getReturnType() != void.class : m.getReturnType() == reply;
            if (asked && m.getDeclaringClass() != Object.class && !Modifier.isStatic(m.getModifiers()) && !m.isBridge()) {
                all.put(signature(m), m);
            }
        }
        return new ArrayList<>(all.values());
    }

    static String signature(Method m) {
        return m.getName() + Arrays.stream(m.getGenericParameterTypes()).map(Type::getTypeName).collect(Collectors.joining(",", "(", ")"));
    }

    /** Arguments for a method, or an exception where it wants something that cannot be made up. */
    static Object[] arguments(Method m, Random random, String[] keys) {
        numbers = m.getName().matches("p?(set)?ex(At)?|p?ex.*|px.*|setex|psetex|hp?expire.*") ? LONG_AFTER_OR_OVER : NUMBERS;
        Type[] types = m.getGenericParameterTypes();
        Object[] arguments = new Object[types.length];
        for (int i = 0; i < types.length; i++) {
            arguments[i] = argument(types[i], random, keys, keys.length == 1 ? 10 : i == 0 ? 9 : 4);
        }
        return arguments;
    }

    private static Object argument(Type type, Random random, String[] keys, int outOfTen) {
        if (type == String.class) {
            String[] from = random.nextInt(10) < outOfTen ? keys : WORDS;
            return from[random.nextInt(from.length)];
        }
        if (type == int.class || type == Integer.class) {
            return (int) numbers[random.nextInt(numbers.length)];
        }
        if (type == long.class || type == Long.class) {
            return numbers[random.nextInt(numbers.length)];
        }
        if (type == double.class || type == Double.class) {
            return FRACTIONS[random.nextInt(FRACTIONS.length)];
        }
        if (type == float.class || type == Float.class) {
            return (float) random.nextInt(3);
        }
        if (type == boolean.class || type == Boolean.class) {
            return random.nextBoolean();
        }
        if (type == byte[].class) {
            return ((String) argument(String.class, random, keys, outOfTen)).getBytes(StandardCharsets.UTF_8);
        }
        if (type instanceof GenericArrayType || type instanceof Class && ((Class<?>) type).isArray()) {
            Type of = type instanceof Class ? ((Class<?>) type).getComponentType() : ((GenericArrayType) type).getGenericComponentType();
            Object array = Array.newInstance(raw(of), 1 + random.nextInt(3));
            for (int i = 0; i < Array.getLength(array); i++) {
                Array.set(array, i, argument(of, random, keys, keys.length == 1 ? 10 : 6));
            }
            return array;
        }
        if (type instanceof ParameterizedType) {
            Type[] of = ((ParameterizedType) type).getActualTypeArguments();
            if (raw(type) == Map.class) {
                Map<Object, Object> map = new LinkedHashMap<>();
                for (int i = 0; i < 2; i++) {
                    map.put(argument(of[0], random, keys, 4), argument(of[1], random, keys, 4));
                }
                return map;
            }
            if (raw(type).isAssignableFrom(List.class)) {
                return new ArrayList<>(Arrays.asList(argument(of[0], random, keys, 6), argument(of[0], random, keys, 6)));
            }
            if (raw(type) == Set.class) {
                return new LinkedHashSet<>(Arrays.asList(argument(of[0], random, keys, 6)));
            }
        }
        Class<?> raw = raw(type);
        if (raw.isEnum()) {
            return raw.getEnumConstants()[random.nextInt(raw.getEnumConstants().length)];
        }
        return parameters(raw, random, keys);
    }

    /** An object of Jedis' own that stands for some parameters, with none to two of them set. */
    private static Object parameters(Class<?> type, Random random, String[] keys) {
        if (!type.getName().startsWith("redis.clients.") || Modifier.isAbstract(type.getModifiers())) {
            throw new IllegalArgumentException("nothing to give for " + type.getName());
        }
        Object made = null;
        List<Constructor<?>> constructors = Arrays.stream(type.getConstructors())
                .sorted(Comparator.comparing((Constructor<?> c) -> c.getParameterCount()).thenComparing(Constructor::toGenericString)).collect(Collectors.toList());
        for (Constructor<?> c : constructors) {
            try {
                made = c.newInstance(Arrays.stream(c.getGenericParameterTypes()).map(t -> argument(t, random, keys, 4)).toArray());
                break;
            } catch (ReflectiveOperationException | IllegalArgumentException e) {
                made = null;
            }
        }
        for (Method m : type.getMethods()) {
            if (made == null && Modifier.isStatic(m.getModifiers()) && m.getReturnType() == type && m.getParameterCount() == 0) {
                try {
                    made = m.invoke(null);
                } catch (ReflectiveOperationException e) {
                    throw new IllegalArgumentException(e);
                }
            }
        }
        if (made == null) {
            throw new IllegalArgumentException("no constructor for " + type.getName());
        }
        List<Method> setters = of(type, type).stream().filter(m -> !m.getName().startsWith("block")).collect(Collectors.toList());
        for (int i = random.nextInt(3); i > 0 && !setters.isEmpty(); i--) {
            Method setter = setters.get(random.nextInt(setters.size()));
            try {
                setter.invoke(made, arguments(setter, random, keys));
            } catch (ReflectiveOperationException | IllegalArgumentException e) {
                // as it was
            }
        }
        return made;
    }

    private static Class<?> raw(Type type) {
        if (type instanceof Class) {
            return (Class<?>) type;
        }
        if (type instanceof ParameterizedType) {
            return raw(((ParameterizedType) type).getRawType());
        }
        throw new IllegalArgumentException("nothing to give for " + type.getTypeName());
    }

    /** Calls the first method of that name which takes these arguments; versions of Jedis differ in int and long. */
    static Object call(Object target, String name, Object... arguments) throws Throwable {
        for (Method m : of(target.getClass(), null)) {
            if (m.getName().equals(name) && m.getParameterCount() == arguments.length) {
                Object[] fitting = new Object[arguments.length];
                boolean fits = true;
                for (int i = 0; i < fitting.length && fits; i++) {
                    fitting[i] = fit(arguments[i], m.getParameterTypes()[i]);
                    fits = fitting[i] != null;
                }
                if (fits) {
                    return invoke(target, m, fitting);
                }
            }
        }
        throw new NoSuchMethodException(target.getClass().getSimpleName() + "." + name);
    }

    static Object invoke(Object target, Method m, Object... arguments) throws Throwable {
        try {
            m.setAccessible(true);
            return m.invoke(target, arguments);
        } catch (InvocationTargetException e) {
            throw e.getCause();
        }
    }

    private static Object fit(Object argument, Class<?> type) {
        if (type == int.class && argument instanceof Integer || type == boolean.class && argument instanceof Boolean || type == double.class && argument instanceof Double) {
            return argument;
        }
        if (type == long.class && argument instanceof Number && !(argument instanceof Double)) {
            return ((Number) argument).longValue();
        }
        return type.isInstance(argument) ? argument : null;
    }

    /** A reply as text. Sets and maps have no order; bytes that are no text are escaped. */
    static String text(Object reply) {
        if (reply == null) {
            return "null";
        }
        if (reply instanceof byte[]) {
            return text(new String((byte[]) reply, StandardCharsets.ISO_8859_1));
        }
        if (reply instanceof String) {
            String all = (String) reply;
            if (all.length() > 500) {
                return text(all.substring(0, 100)) + "... " + all.length() + " " + all.hashCode();
            }
            StringBuilder out = new StringBuilder("'");
            for (char c : all.toCharArray()) {
                out.append(c < ' ' || c > '~' ? String.format("\\x%02x", (int) c) : String.valueOf(c));
            }
            return out.append("'").toString();
        }
        if (reply instanceof Throwable) {
            return reply.getClass().getSimpleName() + ": " + text(String.valueOf(((Throwable) reply).getMessage()));
        }
        if (reply instanceof Map) {
            return ((Map<?, ?>) reply).entrySet().stream().map(e -> text(e.getKey()) + "=" + text(e.getValue())).sorted().collect(Collectors.joining(", ", "{", "}"));
        }
        if (reply instanceof Map.Entry) {
            return text(((Map.Entry<?, ?>) reply).getKey()) + "=" + text(((Map.Entry<?, ?>) reply).getValue());
        }
        if (reply instanceof Collection) {
            java.util.stream.Stream<String> all = ((Collection<?>) reply).stream().map(Methods::text);
            return (reply instanceof Set ? all.sorted() : all).collect(Collectors.joining(", ", "[", "]"));
        }
        if (reply.getClass().isArray()) {
            List<Object> all = new ArrayList<>();
            for (int i = 0; i < Array.getLength(reply); i++) {
                all.add(Array.get(reply, i));
            }
            return text(all);
        }
        if (reply.getClass().getName().startsWith("redis.clients.")  && !(reply instanceof Enum)) {
            return fields(reply);
        }
        return reply.toString();
    }

    private static String fields(Object reply) {
        List<String> all = new ArrayList<>();
        for (Class<?> c = reply.getClass(); c != null && c.getName().startsWith("redis.clients."); c = c.getSuperclass()) {
            for (Field f : c.getDeclaredFields()) {
                if (!Modifier.isStatic(f.getModifiers())) {
                    try {
                        f.setAccessible(true);
                        all.add(f.getName() + "=" + text(f.get(reply)));
                    } catch (IllegalAccessException e) {
                        throw new IllegalStateException(e);
                    }
                }
            }
        }
        return all.stream().sorted().collect(Collectors.joining(", ", reply.getClass().getSimpleName() + "{", "}"));
    }
}
