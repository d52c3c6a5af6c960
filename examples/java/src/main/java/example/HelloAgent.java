package example;

import agentreach.v1.AgentOuterClass.Registration;
import agentreach.v1.AgentServiceGrpc;
import agentreach.v1.Attach.AttachRequest;
import agentreach.v1.Attach.AttachResponse;
import agentreach.v1.Attach.Goodbye;
import agentreach.v1.Attach.Hello;
import agentreach.v1.Attach.LinkBeat;
import agentreach.v1.Attach.LinkRefusal;
import agentreach.v1.Attach.Pong;
import agentreach.v1.Attach.RunningAttempt;
import agentreach.v1.Attempt.AttemptAccept;
import agentreach.v1.Attempt.AttemptDelta;
import agentreach.v1.Attempt.AttemptKey;
import agentreach.v1.Attempt.AttemptResult;
import agentreach.v1.Attempt.Offer;
import agentreach.v1.Dispatch.StreamOpening;
import agentreach.v1.Event.Delta;
import agentreach.v1.PayloadOuterClass.Payload;
import agentreach.v1.TaskOuterClass.TaskSpec;
import io.grpc.stub.StreamObserver;
import java.util.ArrayList;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import java.util.UUID;
import java.util.concurrent.CountDownLatch;
import java.util.concurrent.ExecutorService;
import java.util.concurrent.Executors;
import java.util.concurrent.Future;
import java.util.concurrent.ThreadLocalRandom;
import java.util.concurrent.TimeUnit;

/**
 * An agent: dials Agent-Reach, streams its answers, keeps each outcome until the server has it for certain, and comes back by itself.
 */
public final class HelloAgent {
  private static final String AGENT_ID = "hello-java";
  private static final int LINK = 1; // our number on the stream
  private static final int SLOTS = 8;
  private static final long LONGEST_WAIT_MS = 5_000;

  /** What all attempts of a task have in common. */
  private record Name(String tenant, String taskId) {
    static Name of(AttemptKey key) {
      return new Name(key.getTenant(), key.getTaskId());
    }
  }

  /** An attempt that runs, or whose outcome the server does not have yet. */
  private static final class Attempt {
    final AttemptKey key;
    final List<AttemptDelta> deltas = new ArrayList<>();
    Future<?> work;
    AttemptResult outcome; // null while it runs

    Attempt(AttemptKey key) {
      this.key = key;
    }
  }

  private final String bootId = UUID.randomUUID().toString();
  private final ExecutorService workers = Executors.newFixedThreadPool(SLOTS);
  private final Map<Name, Attempt> attempts = new HashMap<>();
  private StreamObserver<AttachRequest> up; // null while there is no stream
  private long lastFrame;
  private long hellos; // how many we have said
  private boolean stopping;

  public static void main(String[] arguments) throws InterruptedException {
    var agent = new HelloAgent();
    var beats = Executors.newSingleThreadScheduledExecutor();
    beats.scheduleAtFixedRate(agent::beat, 5, 5, TimeUnit.SECONDS);
    Runtime.getRuntime().addShutdownHook(new Thread(agent::goodbye));
    var client = AgentServiceGrpc.newStub(Server.connect());
    while (true) {
      agent.attach(client);
      Thread.sleep(ThreadLocalRandom.current().nextLong(LONGEST_WAIT_MS)); // all who lost a server come back spread
    }
  }

  /** Holds one stream, from the hello to its end. */
  private void attach(AgentServiceGrpc.AgentServiceStub client) throws InterruptedException {
    var ended = new CountDownLatch(1);
    var stream = client.attach(new StreamObserver<AttachResponse>() {
      @Override
      public void onNext(AttachResponse frame) {
        received(frame);
      }

      @Override
      public void onError(Throwable error) {
        System.err.println("the stream broke: " + error.getMessage());
        ended.countDown();
      }

      @Override
      public void onCompleted() {
        ended.countDown();
      }
    });
    synchronized (this) {
      up = stream;
      lastFrame = 0;
      send(AttachRequest.newBuilder().setOpening(StreamOpening.newBuilder().setProtocolVersion("1")));
      hello();
    }
    ended.await();
    synchronized (this) {
      up = null;
    }
  }

  /** Says what we are and names all that runs: what it does not name is not running. Then tells again what the server lacks. */
  private void hello() {
    var registration = Registration.newBuilder()
        .setAgentId(AGENT_ID)
        .setInstanceId(AGENT_ID + "@" + ProcessHandle.current().pid())
        .setBootId(bootId)
        .setMaxConcurrency(SLOTS)
        .setReady(true)
        .addFeatures("ping");
    var hello = Hello.newBuilder().setLink(LINK).setNumber(++hellos).setRegistration(registration);
    var frame = AttachRequest.newBuilder();
    for (var one : attempts.values()) {
      hello.addRunning(RunningAttempt.newBuilder().setKey(one.key).setLastAttemptSequence(one.deltas.size()));
      if (one.outcome != null) {
        frame.addResults(one.outcome);
      }
    }
    send(frame.addHellos(hello));
  }

  private synchronized void received(AttachResponse frame) {
    lastFrame = frame.getSequence();
    for (var welcome : frame.getLinksList()) {
      welcome.getUnknownList().forEach(this::drop);
      welcome.getReplayList().forEach(key -> {
        var one = find(key);
        if (one != null) {
          send(AttachRequest.newBuilder().addAllDeltas(one.deltas));
        }
      });
    }
    frame.getRefusalsList().forEach(this::refused);
    frame.getOffersList().forEach(this::offered);
    frame.getCancelsList().forEach(cancel -> drop(cancel.getKey()));
    frame.getAcknowledgementsList().forEach(this::drop);
    frame.getPingsList().forEach(ping ->
        send(AttachRequest.newBuilder().addPongs(Pong.newBuilder().setLink(LINK).setNonce(ping.getNonce()))));
    if (frame.getResync()) {
      hello();
    }
    if (frame.getReopen()) {
      up.onCompleted();
    }
  }

  private void refused(LinkRefusal refusal) {
    switch (refusal.getError().getReason()) {
      case ERROR_REASON_STALE_ATTEMPT, ERROR_REASON_UNKNOWN_ATTEMPT -> drop(refusal.getKey());
      default -> System.err.println("refused: " + refusal.getError().getMessage()); // an outcome is told again, with the next beat
    }
  }

  /** Begins an attempt, unless it runs or has ended here already: then its outcome is told again. */
  private void offered(Offer offer) {
    var key = AttemptKey.newBuilder()
        .setTaskId(offer.getTask().getTaskId())
        .setAttempt(offer.getAttempt())
        .setTenant(offer.getTenant())
        .build();
    var known = attempts.get(Name.of(key));
    if (known != null && known.key.getAttempt() >= key.getAttempt()) {
      if (known.outcome != null) {
        send(AttachRequest.newBuilder().addResults(known.outcome));
      }
      return;
    }
    if (known != null) {
      drop(known.key);
    }
    var one = new Attempt(key);
    attempts.put(Name.of(key), one);
    send(AttachRequest.newBuilder().addAccepts(AttemptAccept.newBuilder().setLink(LINK).setKey(key)));
    one.work = workers.submit(() -> work(one, offer.getTask()));
  }

  /** The handler: it greets, word by word. */
  private void work(Attempt one, TaskSpec task) {
    var name = task.getPayload().getText().strip();
    var text = "Hello, " + (name.isEmpty() ? "world" : name) + "!";
    try {
      for (var word : text.split("(?<= )")) {
        say(one, word);
        Thread.sleep(10); // the work
      }
    } catch (InterruptedException nobodyWantsIt) {
      return;
    }
    var output = Payload.newBuilder().setText(text);
    finish(one, AttemptResult.newBuilder().setLink(LINK).setKey(one.key).setOutput(output).build());
  }

  /** Streams a piece. This agent stays far below the 256 KiB that an attempt may send before it is given credit. */
  private synchronized void say(Attempt one, String text) {
    var delta = AttemptDelta.newBuilder()
        .setLink(LINK)
        .setKey(one.key)
        .setAttemptSequence(one.deltas.size() + 1)
        .setDelta(Delta.newBuilder().setPayload(Payload.newBuilder().setText(text)))
        .build();
    one.deltas.add(delta);
    if (find(one.key) == one) {
      send(AttachRequest.newBuilder().addDeltas(delta));
    }
  }

  private synchronized void finish(Attempt one, AttemptResult outcome) {
    one.outcome = outcome;
    if (find(one.key) == one) {
      send(AttachRequest.newBuilder().addResults(outcome));
    }
  }

  /** Gives a sign of life, and tells outcomes again that are not acknowledged. */
  private synchronized void beat() {
    var frame = AttachRequest.newBuilder().addBeats(LinkBeat.newBuilder().setLink(LINK).setLastFrame(lastFrame));
    attempts.values().stream().filter(one -> one.outcome != null).forEach(one -> frame.addResults(one.outcome));
    send(frame);
  }

  /** Leaves in peace: what still runs is given back. */
  private synchronized void goodbye() {
    stopping = true;
    if (up != null) {
      up.onNext(AttachRequest.newBuilder().addGoodbyes(Goodbye.newBuilder().setLink(LINK).setRelease(true)).build());
      up.onCompleted();
    }
  }

  /** The attempt, if it is known here. */
  private Attempt find(AttemptKey key) {
    var one = attempts.get(Name.of(key));
    return one != null && one.key.getAttempt() == key.getAttempt() ? one : null;
  }

  /** Stops an attempt and forgets it. */
  private void drop(AttemptKey key) {
    var one = find(key);
    if (one != null) {
      attempts.remove(Name.of(key));
      one.work.cancel(true);
    }
  }

  /** Sends a frame, if there is a stream; if it breaks, the next hello says what is missing. */
  private void send(AttachRequest.Builder frame) {
    if (up != null && !stopping) {
      try {
        up.onNext(frame.build());
      } catch (IllegalStateException ended) {
        up = null;
      }
    }
  }
}
