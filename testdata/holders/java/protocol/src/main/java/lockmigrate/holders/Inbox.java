// Inbox.java: reads stdin on a thread of its own, so that `stop` and the end of the input are heard during `turns`.
package lockmigrate.holders;

import java.io.BufferedReader;
import java.io.IOException;
import java.io.InputStreamReader;
import java.nio.charset.StandardCharsets;
import java.util.concurrent.BlockingQueue;
import java.util.concurrent.LinkedBlockingQueue;

final class Inbox {
    /** One command; its number tells which `stop` came after it. */
    static final class Line {
        final long number;
        /** null at the end of the input. */
        final String text;

        Line(long number, String text) {
            this.number = number;
            this.text = text;
        }
    }

    private final BlockingQueue<Line> lines = new LinkedBlockingQueue<>();
    private final Runnable atEnd;
    private volatile long stopped;

    /** atEnd runs on the reader's thread when the input has ended, before the commands still queued are done. */
    Inbox(Runnable atEnd) {
        this.atEnd = atEnd;
        Thread reader = new Thread(this::read, "stdin");
        reader.setDaemon(true);
        reader.start();
    }

    Line next() throws InterruptedException {
        return lines.take();
    }

    boolean stopped(Line line) {
        return line.number < stopped;
    }

    private void read() {
        long number = 0;
        try {
            BufferedReader in = new BufferedReader(new InputStreamReader(System.in, StandardCharsets.UTF_8));
            for (String text = in.readLine(); text != null && !text.equals("quit"); text = in.readLine()) {
                number++;
                if (text.equals("stop")) {
                    stopped = number;
                } else if (!text.isEmpty()) {
                    lines.add(new Line(number, text));
                }
            }
        } catch (IOException e) {
            System.err.println("holder: stdin: " + e);
        }
        stopped = Long.MAX_VALUE;
        lines.add(new Line(number, null));
        atEnd.run();
    }
}
