package example;

import io.grpc.ManagedChannel;
import io.grpc.ManagedChannelBuilder;
import java.util.Objects;
import java.util.concurrent.TimeUnit;

/** Where the server is. */
final class Server {
  private Server() {}

  static ManagedChannel connect() {
    String address = Objects.requireNonNullElse(System.getenv("AGENT_REACH_ADDR"), "127.0.0.1:8900");
    return ManagedChannelBuilder.forTarget(address)
        .usePlaintext()
        .keepAliveTime(10, TimeUnit.SECONDS)
        .keepAliveTimeout(5, TimeUnit.SECONDS)
        .keepAliveWithoutCalls(true)
        .maxInboundMessageSize(9 << 20)
        .build();
  }
}
