package example;

import agentreach.v1.Dispatch.DispatchRequest;
import agentreach.v1.Dispatch.RunRequest;
import agentreach.v1.DispatchServiceGrpc;
import agentreach.v1.Event.TaskEvent;
import agentreach.v1.PayloadOuterClass.Payload;
import agentreach.v1.TaskOuterClass.Selector;
import agentreach.v1.TaskOuterClass.TaskSpec;
import com.google.protobuf.Duration;
import java.util.concurrent.TimeUnit;

/** A caller: one answer, and the events of another task as they come. */
public final class Caller {
  private Caller() {}

  public static void main(String[] arguments) {
    var channel = Server.connect();
    try {
      var client = DispatchServiceGrpc.newBlockingStub(channel).withDeadlineAfter(30, TimeUnit.SECONDS);
      var wait = Duration.newBuilder().setSeconds(10);
      var answer = client.dispatch(DispatchRequest.newBuilder().setTask(task(arguments[0])).setWait(wait).build());
      System.out.println(answer.getState() + " " + answer.getResult().getOutput().getText());

      client.run(RunRequest.newBuilder().setTask(task(arguments[0])).build())
          .forEachRemaining(frame -> frame.getEventsList().forEach(Caller::print));
    } finally {
      channel.shutdownNow();
    }
  }

  private static void print(TaskEvent event) {
    switch (event.getKindCase()) {
      case DELTA -> System.out.print(event.getDelta().getPayload().getText());
      case COMPLETE -> System.out.println("\n" + event.getComplete().getState());
      default -> { }
    }
  }

  /** Asks the agent beside this program. Give it a task_id of your own, and sending it twice does no harm. */
  private static TaskSpec task(String name) {
    return TaskSpec.newBuilder()
        .setSelector(Selector.newBuilder().setAgentId("hello-java"))
        .setPayload(Payload.newBuilder().setText(name))
        .build();
  }
}
